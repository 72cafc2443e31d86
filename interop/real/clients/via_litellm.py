"""litellm's SDK, by its providers openai and anthropic."""

import json

import litellm

from dialogue import BASE, CALL, CHAT_TOOL, ENDLESS, LONG, MODEL, SAY, SUNNY, hang_up, run

litellm.suppress_debug_info = True
PROVIDERS = {
    "chat": {"model": "openai/" + MODEL, "api_base": BASE + "/v1", "api_key": "none"},
    "messages": {"model": "anthropic/" + MODEL, "api_base": BASE, "api_key": "none"},
}


def ask(to, content=SAY, **more):
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    return litellm.completion(**{"messages": messages, "temperature": 0, "max_tokens": 200, "num_retries": 0, "max_retries": 0} | to | more)


def usage(u):
    return [u.prompt_tokens, u.completion_tokens]


def calls(message):
    return [[c.function.name, json.loads(c.function.arguments)] for c in message.tool_calls or []]


def whole(to):
    r = ask(to)
    return {"text": r.choices[0].message.content, "end": r.choices[0].finish_reason, "usage": usage(r.usage)}


def streamed(to):
    text, end, counted = "", None, None
    for c in ask(to, stream=True, stream_options={"include_usage": True}):
        for choice in c.choices:
            text, end = text + (choice.delta.content or ""), choice.finish_reason or end
        counted = usage(c.usage) if getattr(c, "usage", None) else counted
    return {"text": text, "end": end, "usage": counted}


def loop(to):
    messages = [{"role": "user", "content": CALL}]
    first = ask(to, messages, tools=[CHAT_TOOL]).choices[0]
    messages += [first.message.model_dump(), {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": SUNNY}]
    last = ask(to, messages, tools=[CHAT_TOOL]).choices[0]
    return {"calls": calls(first.message), "end": first.finish_reason, "text": last.message.content, "last": last.finish_reason}


def leave(to):
    s = ask(to, ENDLESS, max_tokens=LONG, stream=True)
    return hang_up(s, lambda _: close(s.completion_stream))


def close(stream):
    """Closes the HTTP response that litellm's iterator reads, which has no way of its own to do so."""
    if hasattr(stream, "close"):
        stream.close()
    else:
        (getattr(stream, "response_iterator", None) or stream.streaming_response).close()


dialogues = {}
for name, to in PROVIDERS.items():
    dialogues |= {
        name + " whole": lambda to=to: whole(to),
        name + " streamed": lambda to=to: streamed(to),
        name + " tool loop": lambda to=to: loop(to),
        name + " bad field": lambda to=to: ask(to, temperature=-1),
        name + " unknown model": lambda to=to: ask(to, model=to["model"].replace(MODEL, "no-such-model")),
        name + " hang-up": lambda to=to: leave(to),
    }


def respond():
    r = litellm.responses(input=SAY, temperature=0, max_output_tokens=200, **PROVIDERS["chat"])
    return {"text": r.output_text, "end": r.status, "usage": [r.usage.input_tokens, r.usage.output_tokens]}


def respond_streamed():
    events = list(litellm.responses(input=SAY, temperature=0, max_output_tokens=200, stream=True, **PROVIDERS["chat"]))
    return {"deltas": "".join(e.delta for e in events if e.type == "response.output_text.delta"), "last": events[-1].type}


run(dialogues | {"responses whole": respond, "responses streamed": respond_streamed})
