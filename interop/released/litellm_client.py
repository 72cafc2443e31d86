"""litellm's SDK, by its providers openai and anthropic."""

import json

import litellm

from check import ASK, BASE, MODEL, check, run, want, words

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
litellm.suppress_debug_info = True
OPENAI = {"model": "openai/" + MODEL, "api_base": BASE + "/v1", "api_key": "none"}
ANTHROPIC = {"model": "anthropic/" + MODEL, "api_base": BASE, "api_key": "none", "max_tokens": 400}


def loop(to):
    messages = [{"role": "user", "content": ASK}]
    first = litellm.completion(messages=messages, tools=TOOLS, **to).choices[0].message
    want(first.tool_calls and first.tool_calls[0].function.name == "weather", first)
    call = first.tool_calls[0]
    city = json.loads(call.function.arguments)["city"]
    messages += [first.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "rain in " + city}]
    last = litellm.completion(messages=messages, tools=TOOLS, **to).choices[0].message
    want(not last.tool_calls, last)
    words(last.content)


def stream(to):
    parts = [c.choices[0].delta.content or "" for c in litellm.completion(messages=[{"role": "user", "content": ASK}], stream=True, **to) if c.choices]
    want(len(parts) > 0, parts)
    words("".join(parts))


@check
def openai_loop():
    loop(OPENAI)


@check
def openai_stream():
    stream(OPENAI)


@check
def anthropic_loop():
    loop(ANTHROPIC)


@check
def anthropic_stream():
    stream(ANTHROPIC)


@check
def responses():
    words(litellm.responses(input=ASK, **OPENAI).output_text)


run()
