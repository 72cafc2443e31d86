"""Every API's answers, whole and streamed, read strictly by the types that are published for them:
OpenAI's and Anthropic's clients' own, and for the Responses API also those of the Open Responses
specification, with requests as its compliance suite makes them. The clients themselves read
leniently: what they do not find they leave out.
"""

import base64
import functools
import json
import urllib.request

import anthropic.types
import openai.types
import openai.types.chat
import openai.types.responses
import openresponses_types
import pydantic

import suite
from suite import check, same, want

WEATHER = {"type": "object", "properties": {"location": {"type": "string", "description": "a city"}}, "required": ["location"]}
USER = {"role": "user", "content": "Count from 1 to 5."}

# The events of the specification, by their types.
EVENTS = {}
for model in vars(openresponses_types).values():
    if isinstance(model, type) and issubclass(model, pydantic.BaseModel) and model.__name__.endswith("StreamingEvent"):
        for word in pydantic.TypeAdapter(model.model_fields["type"].annotation).json_schema().get("enum", []):
            EVENTS[word] = model

# Events of reasoning have the names that OpenAI's clients know, and the specification has others.
OPENAI_ONLY = {"response.reasoning_text.delta", "response.reasoning_text.done"}


class Suite(suite.Server):
    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        head = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
        with urllib.request.urlopen(urllib.request.Request(self.base + path, data, head), timeout=120) as r:
            return r.read()

    def events(self, path, body):
        for line in self.ask(path, body | {"stream": True}).decode().splitlines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield line.removeprefix("data: ")


reader = functools.cache(pydantic.TypeAdapter)  # making one takes a second for some


def strict(model, text):
    try:
        return reader(model).validate_json(text, strict=True)
    except pydantic.ValidationError as e:
        raise AssertionError(f"{getattr(model, '__name__', model)}: {e} in {text!r:.2000}") from None


def spec(model, text):
    """Reads by the specification, but for the schema of a format, which its types have as null."""
    value = json.loads(text)
    answer = value.get("response", value)
    if answer.get("object") == "response" and answer["text"]["format"]["type"] == "json_schema":
        want(answer["text"]["format"]["schema"], "no schema")
        answer["text"]["format"]["schema"] = None
    return strict(model, json.dumps(value))


def tool(name="get_weather"):
    return {"type": "function", "function": {"name": name, "description": "the weather", "parameters": WEATHER}}


CHATS = {
    "text": {"messages": [USER], "max_tokens": 8},
    "several": {"messages": [USER], "max_tokens": 4, "n": 2, "logprobs": True, "top_logprobs": 2},
    "forced": {"messages": [USER], "tools": [tool()], "tool_choice": "required"},
    "document": {"messages": [USER], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": WEATHER}}},
}


@check
def chats(s):
    for name, ask in CHATS.items():
        ask = ask | {"model": "weir-sim"}
        whole = strict(openai.types.chat.ChatCompletion, s.ask("/v1/chat/completions", ask))
        same(bool(whole.choices[0].message.tool_calls), name == "forced", name)
        chunks = [strict(openai.types.chat.ChatCompletionChunk, e) for e in s.events("/v1/chat/completions", ask | {"stream_options": {"include_usage": True}})]
        want(chunks[-1].usage, f"{name}: no usage")


@check
def completions(s):
    ask = {"model": "weir-sim", "prompt": "Count.", "max_tokens": 8, "logprobs": 2}
    strict(openai.types.Completion, s.ask("/v1/completions", ask))
    events = [json.loads(e) for e in s.events("/v1/completions", ask)]
    same([c["finish_reason"] for e in events[:-1] for c in e["choices"]], [None] * (len(events) - 1), "reasons before the end")
    for e in events[:-1]:
        e["choices"][0]["finish_reason"] = "stop"  # null in OpenAI's own streams, too, and not in its type
    for e in events:
        strict(openai.types.Completion, json.dumps(e))


@check
def models(s):
    listed = json.loads(s.ask("/v1/models"))
    same(listed["object"], "list", "object")
    for m in listed["data"]:
        strict(openai.types.Model, json.dumps(m))
    strict(openai.types.Model, s.ask("/v1/models/weir-sim"))


@check
def messages(s):
    for name, more in {
        "text": {}, "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000},
        "forced": {"tools": [{"name": "get_weather", "input_schema": WEATHER}], "tool_choice": {"type": "any"}, "max_tokens": 400},
    }.items():
        ask = {"model": "weir-sim", "messages": [USER], "max_tokens": 16} | more
        whole = strict(anthropic.types.Message, s.ask("/v1/messages", ask))
        same(any(b.type == "tool_use" for b in whole.content), name == "forced", name)
        for e in s.events("/v1/messages", ask):
            if json.loads(e)["type"] != "ping":
                strict(anthropic.types.RawMessageStreamEvent, e)
    strict(anthropic.types.MessageTokensCount, s.ask("/v1/messages/count_tokens", {"model": "weir-sim", "messages": [USER]}))


def said(role, content):
    return {"type": "message", "role": role, "content": content}


TOOLS = [{"type": "function", "name": "get_weather", "description": "the weather", "parameters": WEATHER}]
IMAGE = "data:image/png;base64," + base64.b64encode(suite.png(28, 28, 7)).decode()

RESPONSES = {
    "text": {"input": [said("user", "Say three words.")]},
    "instructed": {"input": [said("system", "You are a pirate."), said("user", "Say hello.")]},
    "turns": {"input": [said("user", "I am Alice."), said("assistant", "Hello Alice."), said("user", "Who am I?")]},
    "image": {"input": [said("user", [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": IMAGE}])]},
    "tool": {"input": [said("user", "What is the weather in Paris?")], "tools": TOOLS, "tool_choice": "required"},
    "bare tool": {"input": [said("user", "Now.")], "tools": [{"type": "function", "name": "now"}], "tool_choice": "none"},
    "cut": {"input": "Count.", "max_output_tokens": 16, "temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    "thought": {"input": "Count.", "reasoning": {"effort": "low"}},
    "summary": {"input": "Count.", "reasoning": {"summary": "auto"}},
    "document": {"input": "Where?", "text": {"format": {"type": "json_schema", "name": "n", "schema": WEATHER}, "verbosity": None}},
    "said back": {"input": "Count.", "safety_identifier": "a", "prompt_cache_key": "k", "max_tool_calls": 3, "metadata": {"a": "b"}, "service_tier": "auto"},
    "scores": {"input": "Count.", "max_output_tokens": 16, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
}


@check
def responses(s):
    for name, more in RESPONSES.items():
        ask = {"model": "weir-sim", "max_output_tokens": 400} | more
        text = s.ask("/v1/responses", ask)
        strict(openai.types.responses.Response, text)
        whole = spec(openresponses_types.ResponseResource, text)
        want(whole.output and whole.status in ("completed", "incomplete"), f"{name}: {text}")
        same(whole.completed_at is not None, whole.status == "completed", f"{name}: completed_at beside {whole.status}")
        same("function_call" in [i.type for i in whole.output], name == "tool", f"{name}: calls")
        if name == "said back":
            same((whole.safety_identifier, whole.prompt_cache_key, whole.max_tool_calls, whole.metadata), ("a", "k", 3, {"a": "b"}), name)
        if name == "cut":
            same((whole.temperature, whole.top_p, whole.presence_penalty, whole.frequency_penalty), (0.5, 0.9, 0.5, 0.25), name)
        kinds = set()
        for e in s.events("/v1/responses", ask):
            strict(openai.types.responses.ResponseStreamEvent, e)
            kind = json.loads(e)["type"]
            kinds.add(kind)
            if kind not in OPENAI_ONLY:
                want(kind in EVENTS, f"{name}: the specification has no event {kind}")
                spec(EVENTS[kind], e)
        same("response.function_call_arguments.done" in kinds, name == "tool", f"{name}: events of calls, of {kinds}")


if __name__ == "__main__":
    suite.main(Suite)
