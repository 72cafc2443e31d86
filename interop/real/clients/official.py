"""OpenAI's and Anthropic's own clients for Python."""

import json

import anthropic
import openai

from dialogue import BASE, CALL, CHAT_TOOL, ENDLESS, LONG, MODEL, SAY, SCHEMA, SUNNY, hang_up, run, say

o = openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0, timeout=300)
a = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0, timeout=300)


def user(text):
    return [{"role": "user", "content": text}]


# Chat completions.


def chat(content=SAY, **more):
    return o.chat.completions.create(**{"model": MODEL, "messages": user(content) if isinstance(content, str) else content, "temperature": 0, "max_tokens": 200} | more)


def chat_usage(u):
    return [u.prompt_tokens, u.completion_tokens, u.total_tokens]


def calls(message):
    return [[c.function.name, json.loads(c.function.arguments)] for c in message.tool_calls or []]


def chat_whole():
    r = chat()
    return {"text": r.choices[0].message.content, "end": r.choices[0].finish_reason, "usage": chat_usage(r.usage), "model": r.model}


def chat_streamed():
    text, end, usage = "", None, None
    for c in chat(stream=True, stream_options={"include_usage": True}):
        for choice in c.choices:
            text, end = text + (choice.delta.content or ""), choice.finish_reason or end
        usage = chat_usage(c.usage) if c.usage else usage
    return {"text": text, "end": end, "usage": usage}


def chat_loop():
    messages = user(CALL)
    first = chat(messages, tools=[CHAT_TOOL]).choices[0]
    messages += [first.message, {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": SUNNY}]
    last = chat(messages, tools=[CHAT_TOOL]).choices[0]
    return {"calls": calls(first.message), "end": first.finish_reason, "text": last.message.content, "last": last.finish_reason}


def chat_loop_streamed():
    with o.chat.completions.stream(model=MODEL, messages=user(CALL), tools=[CHAT_TOOL], temperature=0, max_tokens=200) as s:
        c = s.get_final_completion().choices[0]
    return {"calls": calls(c.message), "end": c.finish_reason}


def chat_forced():
    return {"calls": calls(chat("How?", tools=[CHAT_TOOL], tool_choice={"type": "function", "function": {"name": "weather"}}).choices[0].message)}


def chat_document():
    r = chat("How?", response_format={"type": "json_schema", "json_schema": {"name": "d", "schema": SCHEMA, "strict": True}})
    return {"document": json.loads(r.choices[0].message.content)}


def chat_leave():
    return hang_up(s := chat(ENDLESS, max_tokens=LONG, stream=True), lambda _: s.close())


# Completions.


def completion(prompt=SAY, **more):
    return o.completions.create(**{"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 200} | more)


def completion_whole():
    r = completion()
    return {"text": r.choices[0].text, "end": r.choices[0].finish_reason, "usage": chat_usage(r.usage)}


def completion_streamed():
    text, usage = "", None
    for c in completion(stream=True, stream_options={"include_usage": True}):
        text += "".join(choice.text for choice in c.choices)
        usage = chat_usage(c.usage) if c.usage else usage
    return {"text": text, "usage": usage}


# Responses.

RESPONSE_TOOL = {"type": "function", "strict": False, **CHAT_TOOL["function"]}


def respond(content=SAY, **more):
    return o.responses.create(**{"model": MODEL, "input": content, "temperature": 0, "max_output_tokens": 200} | more)


def response_of(r):
    return {"text": r.output_text, "end": r.status, "usage": [r.usage.input_tokens, r.usage.output_tokens, r.usage.total_tokens],
            "calls": [[i.name, json.loads(i.arguments)] for i in r.output if i.type == "function_call"]}


def responses_streamed():
    text, last = "", None
    for e in respond(stream=True):
        text += e.delta if e.type == "response.output_text.delta" else ""
        last = e
    return {"deltas": text, "last": last.type} | response_of(last.response)


def responses_loop():
    first = respond(CALL, tools=[RESPONSE_TOOL])
    call = next(i for i in first.output if i.type == "function_call")
    turns = user(CALL) + first.output + [{"type": "function_call_output", "call_id": call.call_id, "output": SUNNY}]
    return {"first": response_of(first), "last": response_of(respond(turns, tools=[RESPONSE_TOOL]))}


CUSTOM_TOOL = {"type": "custom", "name": "run", "description": "Runs a program."}
RUN = say('<tool_call>\n{"name": "run", "arguments": {"input": "print(\\"é\\")\\n"}}\n</tool_call>')


def responses_custom_loop():
    first = respond(RUN, tools=[CUSTOM_TOOL])
    call = next(i for i in first.output if i.type == "custom_tool_call")
    turns = user(RUN) + first.output + [{"type": "custom_tool_call_output", "call_id": call.call_id, "output": SUNNY}]
    return {"call": [call.name, call.input], "first": response_of(first), "last": response_of(respond(turns, tools=[CUSTOM_TOOL]))}


def responses_custom_streamed():
    deltas, done = "", None
    for e in respond(RUN, tools=[CUSTOM_TOOL], stream=True):
        deltas += e.delta if e.type == "response.custom_tool_call_input.delta" else ""
        done = e.input if e.type == "response.custom_tool_call_input.done" else done
    return {"deltas": deltas, "done": done}


def responses_forced():
    return {"calls": response_of(respond("How?", tools=[RESPONSE_TOOL], tool_choice={"type": "function", "name": "weather"}))["calls"]}


def responses_leave():
    return hang_up(s := respond(ENDLESS, max_output_tokens=LONG, stream=True), lambda _: s.close())


# Messages.

MESSAGE_TOOL = {"name": "weather", "description": "The weather of a place.", "input_schema": SCHEMA}


def message(content=SAY, temperature=0, **more):
    """Its newest models take no temperature, so that the client has no such parameter."""
    messages = user(content) if isinstance(content, str) else content
    return a.messages.create(**{"model": MODEL, "messages": messages, "max_tokens": 200, "extra_body": {"temperature": temperature}} | more)


def message_of(m):
    u = m.usage
    return {"text": "".join(b.text for b in m.content if b.type == "text"), "calls": [[b.name, b.input] for b in m.content if b.type == "tool_use"],
            "end": m.stop_reason, "usage": [u.input_tokens + (u.cache_read_input_tokens or 0) + (u.cache_creation_input_tokens or 0), u.output_tokens]}


def messages_streamed(content=SAY, **more):
    with a.messages.stream(model=MODEL, messages=user(content), max_tokens=200, extra_body={"temperature": 0}, **more) as s:
        return {"deltas": "".join(s.text_stream)} | message_of(s.get_final_message())


def messages_loop():
    first = message(CALL, tools=[MESSAGE_TOOL])
    call = next(b for b in first.content if b.type == "tool_use")
    turns = user(CALL) + [{"role": "assistant", "content": first.content}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": SUNNY}]}]
    return {"first": message_of(first), "last": message_of(message(turns, tools=[MESSAGE_TOOL]))}


def messages_leave():
    return hang_up(s := message(ENDLESS, max_tokens=LONG, stream=True), lambda _: s.close())


run({
    "chat whole": chat_whole,
    "chat streamed": chat_streamed,
    "chat tool loop": chat_loop,
    "chat tool call streamed": chat_loop_streamed,
    "chat forced tool": chat_forced,
    "chat document": chat_document,
    "chat bad field": lambda: chat(temperature=-1),
    "chat bad field streamed": lambda: chat(temperature=-1, stream=True),
    "chat unknown model": lambda: chat(model="no-such-model"),
    "chat hang-up": chat_leave,
    "completions whole": completion_whole,
    "completions streamed": completion_streamed,
    "completions bad field": lambda: completion(temperature=-1),
    "responses whole": lambda: response_of(respond()),
    "responses streamed": responses_streamed,
    "responses tool loop": responses_loop,
    "responses custom tool loop": responses_custom_loop,
    "responses custom tool streamed": responses_custom_streamed,
    "responses forced tool": responses_forced,
    "responses bad field": lambda: respond(temperature=-1),
    "responses unknown model": lambda: respond(model="no-such-model"),
    "responses hang-up": responses_leave,
    "messages whole": lambda: message_of(message()),
    "messages streamed": messages_streamed,
    "messages tool loop": messages_loop,
    "messages tool call streamed": lambda: messages_streamed(CALL, tools=[MESSAGE_TOOL]),
    "messages count": lambda: {"tokens": a.messages.count_tokens(model=MODEL, messages=user(SAY)).input_tokens},
    "messages bad field": lambda: message(temperature=-1),
    "messages unknown model": lambda: message(model="no-such-model"),
    "messages hang-up": messages_leave,
    "models": lambda: {"ids": [m.id for m in o.models.list().data]},
})
