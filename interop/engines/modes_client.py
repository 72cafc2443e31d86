"""Checks of what the simulated engine says, through the official OpenAI client:
a tool loop, structured output and reasoning, streamed and not, with documents
held against jsonschema.

Arguments: the URLs of engines' OpenAI APIs. Each check prints one line of JSON;
the last line says how many there are.
"""

import json
import sys
import traceback

import jsonschema
import openai
import pydantic

checks = []


def check(f):
    checks.append(f)
    return f


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 3, "maxLength": 40},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 31}, "minItems": 1, "maxItems": 3},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
ASK = [{"role": "user", "content": "How is the weather?"}]
SCHEMAS = {"weather": WEATHER, "now": {"type": "object"}}


def streamed(client, **kw):
    """A chat's message put together from its stream."""
    text, reasoning, calls, reason = "", "", [], None
    for event in client.chat.completions.create(model="weir-sim", stream=True, **kw):
        for choice in event.choices:
            d = choice.delta
            text += d.content or ""
            reasoning += getattr(d, "reasoning_content", None) or getattr(d, "reasoning", None) or ""
            for c in d.tool_calls or []:
                if c.id:
                    assert c.index == len(calls), c
                    calls.append({"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": ""}})
                calls[c.index]["function"]["arguments"] += c.function.arguments or ""
            assert reason is None or choice.finish_reason is None
            reason = reason or choice.finish_reason
    return text, reasoning, calls, reason


def whole(client, **kw):
    choice = client.chat.completions.create(model="weir-sim", **kw).choices[0]
    m = choice.message
    reasoning = getattr(m, "reasoning_content", None) or getattr(m, "reasoning", None) or ""
    return m.content or "", reasoning, [c.model_dump() for c in m.tool_calls or []], choice.finish_reason


def valid(calls, names):
    for c in calls:
        assert c["function"]["name"] in names, c
        jsonschema.validate(json.loads(c["function"]["arguments"]), SCHEMAS[c["function"]["name"]])


def loop(client, answer):
    """Calls tools until the engine answers in words."""
    messages, turns = list(ASK), 0
    while True:
        text, _, calls, reason = answer(client, messages=messages, tools=TOOLS)
        if reason != "tool_calls":
            assert reason == "stop" and text and not calls, (reason, text, calls)
            return turns
        turns += 1
        assert calls and turns < 5, (turns, calls)
        valid(calls, SCHEMAS)
        messages.append({"role": "assistant", "content": text or None, "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": "12 degrees"} for c in calls]


@check
def tool_loop(client):
    assert loop(client, whole) == 1


@check
def tool_loop_streamed(client):
    assert loop(client, streamed) == 1


@check
def tool_choice_required(client):
    for answer in whole, streamed:
        _, _, calls, reason = answer(client, messages=ASK, tools=TOOLS, tool_choice="required", parallel_tool_calls=True)
        assert reason == "tool_calls" and len(calls) == 2 and calls[0]["id"] != calls[1]["id"], (reason, calls)
        valid(calls, SCHEMAS)


@check
def tool_choice_named(client):
    named = {"type": "function", "function": {"name": "now"}}
    for answer in whole, streamed:
        for seed in range(4):
            _, _, calls, reason = answer(client, messages=ASK, tools=TOOLS, tool_choice=named, seed=seed)
            assert reason == "tool_calls", reason
            valid(calls, ["now"])


@check
def tool_choice_none(client):
    for answer in whole, streamed:
        text, _, calls, _ = answer(client, messages=ASK, tools=TOOLS, tool_choice="none", max_tokens=9)
        assert text and not calls


@check
def cut_by_max_tokens(client):
    for answer in whole, streamed:
        *_, reason = answer(client, messages=ASK, tools=TOOLS, tool_choice="required", max_tokens=12)
        assert reason == "length", reason


class Step(pydantic.BaseModel):
    explanation: str
    output: float


class Solution(pydantic.BaseModel):
    steps: list[Step]
    answer: str | None
    sure: bool


@check
def structured_output(client):
    for seed in range(5):
        done = client.chat.completions.parse(model="weir-sim", messages=ASK, response_format=Solution, seed=seed)
        assert isinstance(done.choices[0].message.parsed, Solution), done


@check
def structured_output_streamed(client):
    with client.chat.completions.stream(model="weir-sim", messages=ASK, response_format=Solution) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Solution)


@check
def json_object(client):
    text, *_ = whole(client, messages=ASK, response_format={"type": "json_object"})
    assert isinstance(json.loads(text), dict), text


@check
def schemas(client):
    for schema in [
        {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 2, "$defs": {"n": {"type": "number", "multipleOf": 0.05, "maximum": 2}}},
        {"anyOf": [{"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"}, {"type": "null"}]},
        {"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
                   {"type": "object", "properties": {"k": {"const": "b"}, "v": {"type": "integer"}}, "required": ["k", "v"]}]},
        {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "n": {"type": "integer", "exclusiveMinimum": 3}}, "required": ["n"]},
        {"type": "object", "properties": {"when": {"type": "string", "format": "date-time"}, "id": {"type": "string", "format": "uuid"}}, "required": ["when", "id"]},
    ]:
        for seed in range(6):
            text, *_ = whole(client, messages=ASK, seed=seed, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
            jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())


@check
def a_schema_that_cannot_be_done(client):
    try:
        whole(client, messages=ASK, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "null"}}}})
    except openai.BadRequestError as e:
        assert '"not"' in str(e), e
    else:
        raise AssertionError("it was taken")


@check
def reasoning(client):
    for answer in whole, streamed:
        text, thought, _, reason = answer(client, messages=ASK, reasoning_effort="low")
        assert reason == "stop" and 4 <= len(thought.split()) <= 16 and text and "<think>" not in text + thought, (text, thought)
        text, thought, *_ = answer(client, messages=ASK, max_tokens=9)
        assert text and not thought, (text, thought)


@check
def reasoning_before_a_call(client):
    for answer in whole, streamed:
        text, thought, calls, reason = answer(client, messages=ASK, tools=TOOLS, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
        assert reason == "tool_calls" and thought and not text, (reason, thought, text)
        valid(calls, SCHEMAS)


@check
def echo(client):
    said = 'Zwölf "boats" \U0001f6a3\n\tand {a: dam}'
    for answer in whole, streamed:
        text, *_ = answer(client, messages=[{"role": "user", "content": said}], extra_body={"chat_template_kwargs": {"content": "echo"}})
        assert text == said, text


@check
def embeddings(client):
    texts = ["low dams", "weirs", "low dams"]
    packed = client.embeddings.create(model="weir-sim", input=texts)  # in base64, as the client asks for by itself
    floats = client.embeddings.create(model="weir-sim", input=texts, encoding_format="float")
    assert [d.index for d in packed.data] == [0, 1, 2], packed
    vectors = [d.embedding for d in packed.data]
    assert vectors == [d.embedding for d in floats.data] and vectors[0] == vectors[2] != vectors[1], vectors
    assert all(abs(sum(x * x for x in v) - 1) < 1e-5 for v in vectors), vectors
    ids = client.embeddings.create(model="weir-sim", input=[[1, 2, 3], [4]], dimensions=8)
    assert [len(d.embedding) for d in ids.data] == [8, 8] and ids.usage.prompt_tokens == 4, ids
    try:
        client.embeddings.create(model="weir-sim", input="x", dimensions=0)
    except openai.BadRequestError as e:
        assert "dimensions" in e.message, e
    else:
        raise AssertionError("it was taken")


count = 0
for url in sys.argv[1:]:
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)
    for f in checks:
        result = {"check": f.__name__, "ok": True, "detail": url}
        try:
            f(client)
        except Exception:
            result.update(ok=False, detail=url + "\n" + traceback.format_exc(limit=3))
        print(json.dumps(result), flush=True)
        count += 1
print(json.dumps({"checks": count}))
