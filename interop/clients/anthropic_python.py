"""The official Anthropic Python client against a server of the Messages API.

It prints and exits as suite.py says. By hand:

    python anthropic_python.py --base-url http://127.0.0.1:8000 \
        --admin-url http://127.0.0.1:8001 --idle-metric weir_requests_in_flight

The engine is expected to say what weir's simulated one does: one word for each
token, calls of the tools it is given, and reasoning where it is asked for.
"""

import asyncio
import base64
import json
import urllib.request

import anthropic
import pydantic
from suite import PATCHES, ROOM, SAY, Server, check, main, png, same, see, want

class Suite(Server):
    def __init__(self, args):
        super().__init__(args)
        self.options = dict(base_url=self.base, api_key="none", max_retries=0, timeout=120)
        self.client = anthropic.Anthropic(**self.options)
        with urllib.request.urlopen(self.base + "/v1/models", timeout=30) as r:
            self.model = json.load(r)["data"][0]["id"]

    def defaults(self, kw):
        kw.setdefault("model", self.model)
        kw.setdefault("messages", SAY)
        kw.setdefault("max_tokens", ROOM)
        return kw

    def create(self, **kw):
        return self.client.messages.create(**self.defaults(kw))

    def stream(self, **kw):
        return self.client.messages.stream(**self.defaults(kw))

    def streamed(self, **kw):
        """The message that the client puts together of a stream, and its events."""
        with self.stream(**kw) as stream:
            events = list(stream)
            return stream.get_final_message(), events


def plain(message):
    """What must be the same of a streamed and a whole message."""
    blocks = [b.to_dict() for b in message.content]
    for b in blocks:
        b.pop("id", None)
    u = message.usage
    return blocks, message.stop_reason, message.stop_sequence, u.input_tokens + (u.cache_read_input_tokens or 0), u.output_tokens


def text_of(message):
    return "".join(b.text for b in message.content if b.type == "text")


@check
def whole(s):
    m = s.create()
    same((m.type, m.role, m.model, m.stop_reason, m.stop_sequence), ("message", "assistant", s.model, "max_tokens", None), "message")
    want(m.id.startswith("msg_"), "id", m.id)
    same([b.type for b in m.content], ["text"], "blocks")
    same((len(text_of(m).split()), m.usage.output_tokens), (ROOM, ROOM), "words")
    want(m.usage.input_tokens > 0, m.usage)
    want(m._request_id, "no request id")


@check
def streamed(s):
    for n in (1, 2, 200):
        m, events = s.streamed(max_tokens=n)
        same(plain(m), plain(s.create(max_tokens=n)), f"{n} tokens")
        same([e.type for e in events if e.type.startswith("message_")], ["message_start", "message_delta", "message_stop"], "events")
        same("".join(e.text for e in events if e.type == "text"), text_of(m), "text events")


@check
def streamed_by_events(s):
    seen = [e.type for e in s.create(stream=True)]
    same((seen[0], seen[1], seen[-1]), ("message_start", "content_block_start", "message_stop"), "events")
    same(seen.count("content_block_start"), seen.count("content_block_stop"), "blocks")


@check
def system_and_blocks(s):
    """Strings and blocks are the same prompt."""
    a = s.create(system="Be brief.", messages=SAY)
    b = s.create(system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
                 messages=[{"role": "user", "content": [{"type": "text", "text": SAY[0]["content"]}]}])
    same(plain(a), plain(b), "answers")
    want(plain(a)[3] > plain(s.create())[3], "the system prompt is no part of the prompt")


@check
def conversation(s):
    first = s.create(max_tokens=100)
    m = s.create(messages=SAY + [{"role": "assistant", "content": first.content}, {"role": "user", "content": "Go on."}])
    same(len(text_of(m).split()), ROOM, "words")


@check
def prefill(s):
    m = s.create(messages=SAY + [{"role": "assistant", "content": "Low dams are"}])
    same(len(text_of(m).split()), ROOM, "words")


@check
def stop_sequence(s):
    text = text_of(s.create(max_tokens=50))
    word = text.split()[7]
    for m in (s.create(max_tokens=50, stop_sequences=["no such text", word]), s.streamed(max_tokens=50, stop_sequences=["no such text", word])[0]):
        same((m.stop_reason, m.stop_sequence), ("stop_sequence", word), "stop")
        same(text_of(m), text[:text.index(word)], "text")
    s.idle()


@check
def sampling(s):
    s.create(extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 5}, metadata={"user_id": "u"}, service_tier="auto")


@check
def count_tokens(s):
    for kw in ({}, {"system": "Be brief."}, {"tools": [WEATHER]}, {"thinking": {"type": "adaptive"}}):
        counted = s.client.messages.count_tokens(model=s.model, messages=SAY, **kw).input_tokens
        same(counted, plain(s.create(**kw))[3], f"tokens with {list(kw)}")


WEATHER = {"name": "get_weather", "description": "The weather in a city.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {"zone": {"enum": ["utc", "local"]}}, "required": ["zone"]}}


def right_call(block):
    same((block.type, block.name), ("tool_use", "get_weather"), "call")
    want(block.id.startswith("toolu_"), "id", block.id)
    want(isinstance(block.input.get("city"), str) and set(block.input) <= {"city", "days"}, "input", block.input)


@check
def tool_use(s):
    m = s.create(tools=[WEATHER], max_tokens=600)
    same((m.stop_reason, len(m.content)), ("tool_use", 1), "answer")
    right_call(m.content[0])
    again, events = s.streamed(tools=[WEATHER], max_tokens=600)
    same(plain(again), plain(m), "streamed")
    want(any(e.type == "input_json" for e in events), "arguments came at once")


@check
def tool_loop(s):
    messages = list(SAY)
    for turn in range(3):
        m = s.create(messages=messages, tools=[WEATHER], max_tokens=600)
        messages.append({"role": "assistant", "content": m.content})
        if m.stop_reason != "tool_use":
            break
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": b.id, "content": [{"type": "text", "text": '{"degrees": 18}'}], "is_error": False}
            for b in m.content]})
    same((turn, m.stop_reason), (1, "end_turn"), "turns before the answer")
    want(text_of(m).split(), "no answer")


@check
def tool_runner(s):
    """The client's own loop."""
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: its name
        """
        asked.append(city)
        return "18 degrees"

    runner = s.client.beta.messages.tool_runner(model=s.model, max_tokens=600, tools=[get_weather], messages=SAY)
    last = runner.until_done()
    same((len(asked), last.stop_reason), (1, "end_turn"), "calls")
    want(last.content[0].text.split(), "no answer")


@check
def tool_choice(s):
    m = s.create(tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=600)
    same([b.type for b in m.content], ["text"], "with none")
    for choice in ({"type": "any"}, {"type": "tool", "name": "now"}, {"type": "any", "disable_parallel_tool_use": True}):
        m = s.create(tools=[WEATHER, NOW], tool_choice=choice, max_tokens=600)
        same(m.stop_reason, "tool_use", f"with {choice}")
        want(all(b.type == "tool_use" for b in m.content), m.content)
        want(choice["type"] == "any" or [b.name for b in m.content] == ["now"], m.content)
        same(plain(s.streamed(tools=[WEATHER, NOW], tool_choice=choice, max_tokens=600)[0]), plain(m), "streamed")


@check
def parallel_tool_use(s):
    two = {"extra_body": {"chat_template_kwargs": {"calls": 2}}}
    m = s.create(tools=[WEATHER], max_tokens=600, **two)
    same([b.type for b in m.content], ["tool_use"] * 2, "calls")
    want(m.content[0].id != m.content[1].id, "one id for two calls")
    same(plain(s.streamed(tools=[WEATHER], max_tokens=600, **two)[0]), plain(m), "streamed")
    m = s.create(tools=[WEATHER], max_tokens=600, tool_choice={"type": "auto", "disable_parallel_tool_use": True}, **two)
    same(len(m.content), 1, "calls when one is wanted")
    s.idle()


@check
def thinking(s):
    for how in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        m = s.create(thinking=how, max_tokens=2000)
        same([b.type for b in m.content], ["thinking", "text"], "blocks")
        want(m.content[0].thinking.split() and m.content[0].signature and "think>" not in m.content[0].thinking + text_of(m), m)
        again, events = s.streamed(thinking=how, max_tokens=2000)
        same(plain(again), plain(m), "streamed")
        same("".join(e.thinking for e in events if e.type == "thinking"), m.content[0].thinking, "thinking events")
    off = s.create(thinking={"type": "disabled"}, max_tokens=600)
    same([b.type for b in off.content], ["text"], "blocks when disabled")
    mute = s.create(thinking={"type": "adaptive", "display": "omitted"}, max_tokens=2000)
    same((mute.content[0].thinking, text_of(mute)), ("", text_of(m)), "omitted")
    m = s.create(messages=SAY + [{"role": "assistant", "content": m.content}, {"role": "user", "content": "Go on."}], max_tokens=ROOM)
    same(len(text_of(m).split()), ROOM, "words after thinking was sent back")


@check
def thinking_and_tools(s):
    m, _ = s.streamed(thinking={"type": "adaptive"}, tools=[WEATHER], max_tokens=2000)
    same(([b.type for b in m.content], m.stop_reason), (["thinking", "tool_use"], "tool_use"), "blocks")
    right_call(m.content[1])


@check
def structured_output(s):
    class City(pydantic.BaseModel):
        name: str
        people: int

    m = s.client.messages.parse(model=s.model, max_tokens=600, messages=SAY, output_format=City)
    want(isinstance(m.parsed_output, City), m)
    schema = {"type": "object", "properties": {"sizes": {"type": "array", "items": {"type": "integer"}}}, "required": ["sizes"], "additionalProperties": False}
    m = s.create(max_tokens=600, output_config={"format": {"type": "json_schema", "schema": schema}})
    want(all(isinstance(n, int) for n in json.loads(text_of(m))["sizes"]), m)
    same(m.stop_reason, "end_turn", "stop_reason")


def block(data, kind="image/png"):
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data if isinstance(data, str) else base64.b64encode(data).decode()}}


def with_images(*blocks):
    return [{"role": "user", "content": [{"type": "text", "text": SAY[0]["content"]}, *blocks]}]


@check
def images(s):
    def answer(m):
        return text_of(m), plain(m)[3], m.usage.output_tokens, plain(m)

    def whole(*data):
        return answer(s.create(messages=with_images(*map(block, data))))

    def streamed(*data):
        m, events = s.streamed(messages=with_images(*map(block, data)))
        same("".join(e.text for e in events if e.type == "text"), text_of(m), "text events")
        return answer(m)

    see(s, whole, streamed)


@check
def image_of_a_tool(s):
    """A tool's result may be an image; it is as many tokens there."""
    before, image = s.looked(), png(100, 57, 1)
    call = s.create(tools=[WEATHER], max_tokens=600)

    def after(*content):
        result = {"type": "tool_result", "tool_use_id": call.content[0].id, "content": [{"type": "text", "text": "seen"}, *content]}
        fields = dict(messages=SAY + [{"role": "assistant", "content": call.content}, {"role": "user", "content": [result]}], tools=[WEATHER])
        m = s.create(**fields)
        same(plain(s.streamed(**fields)[0]), plain(m), "streamed")
        return m

    bare, m = after(), after(block(image))
    same((len(text_of(m).split()), plain(m)[3] - plain(bare)[3]), (ROOM, PATCHES[100, 57]), "words and tokens of the image")
    s.sees(before, [(image, PATCHES[100, 57])] * 2)


@check
def cut_by_max_tokens(s):
    m = s.create(tools=[WEATHER], max_tokens=20)
    same((m.stop_reason, m.content[0].type), ("max_tokens", "tool_use"), "cut call")
    want("INVALID_JSON" in m.content[0].input, m.content[0].input)


@check
def abort_in_mid_stream(s):
    with s.stream(max_tokens=4000) as stream:
        for n, _ in enumerate(stream.text_stream):
            if n == 5:
                break
    s.idle()


@check
def many_streams(s):
    """64 streams at once say what one says alone."""
    alone = text_of(s.create())

    async def one(client):
        async with client.messages.stream(model=s.model, messages=SAY, max_tokens=ROOM) as stream:
            return "".join([t async for t in stream.text_stream])

    async def all_of_them():
        async with anthropic.AsyncAnthropic(**s.options) as client:
            for text in await asyncio.gather(*(one(client) for _ in range(64))):
                same(text, alone, "a stream")

    asyncio.run(all_of_them())
    s.idle()


# Errors. Each must be the class that the client maps it to, and say what is
# wrong where.


def fails(kind, status, type, make, *says):
    try:
        made = make()
    except anthropic.APIStatusError as e:
        same(e.__class__, kind, f"class of {e}")
        same((e.status_code, e.body["type"], e.body["error"]["type"]), (status, "error", type), "error")
        want(e.request_id, "the error has no request id")
        for word in says:
            want(word in e.body["error"]["message"], f"{e.body['error']['message']!r} does not say {word!r}")
        return
    raise AssertionError(f"accepted: {made!r}; want {kind.__name__}")


def bad(s, *says, **kw):
    for stream in (False, True):
        fails(anthropic.BadRequestError, 400, "invalid_request_error", lambda: s.create(stream=stream, **kw), *says)


@check
def malformed_fields(s):
    bad(s, "max_tokens", max_tokens=0)
    bad(s, "max_tokens", extra_body={"max_tokens": "many"})
    bad(s, "messages is empty", messages=[])
    bad(s, "messages[0].role", messages=[{"role": "wizard", "content": "x"}])
    bad(s, "temperature", extra_body={"temperature": "hot"})
    bad(s, "stop_sequences[0]", stop_sequences=[""])
    bad(s, "thinking.budget_tokens", thinking={"type": "enabled", "budget_tokens": 7})
    bad(s, "tool_choice.name", "no_such_tool", tools=[WEATHER], tool_choice={"type": "tool", "name": "no_such_tool"})


@check
def unsupported_fields(s):
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}
    bad(s, "messages[0].content[0].type", "document", messages=[{"role": "user", "content": [document]}])
    bad(s, "tool_choice", "web_search", tools=[{"type": "web_search_20250305", "name": "web_search"}], tool_choice={"type": "any"})
    bad(s, "inference_geo", extra_body={"inference_geo": "eu"})
    bad(s, "frobnicate", extra_body={"frobnicate": 1})


@check
def left_out(s):
    """What was left out of a request is named in the head of its answer, which this client gives."""
    cached = [{"role": "user", "content": [{"type": "text", "text": "Tell me.", "cache_control": {"type": "ephemeral"}}]}]
    tools = [{"type": "web_search_20250305", "name": "web_search"}, WEATHER]
    for api, more in ((s.client.messages, {}), (s.client.beta.messages, {"betas": ["context-management-2025-06-27", "unheard-of-2099-01-01"], "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}})):
        for stream in (False, True):
            raw = api.with_raw_response.create(model=s.model, max_tokens=5, messages=cached, tools=tools, metadata={"user_id": "u"}, stream=stream, **more)
            names = raw.headers.get("weir-ignored").split(", ")
            same(set(names) - {"context_management", "header anthropic-beta"}, {"messages[].content[].cache_control", "tools[] web_search_*", "metadata"}, "ignored")
            same({"context_management", "header anthropic-beta"} <= set(names), bool(more), f"betas among {names}")
            if stream:
                want(list(raw.parse()), "an empty stream")
    raw = s.client.messages.with_raw_response.create(model=s.model, max_tokens=5, messages=SAY)
    same(raw.headers.get("weir-ignored"), None, "a plain request")
    raw = s.client.messages.with_raw_response.count_tokens(model=s.model, messages=cached)
    same(raw.headers.get("weir-ignored"), "messages[].content[].cache_control", "a count")
    answer = s.create(tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=200, output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}})
    want([b for b in answer.content if b.type == "tool_use"], answer)


@check
def image_errors(s):
    """Of what is no base64 the field is named; that it is no image the engine alone knows."""
    image, before = base64.b64encode(png(28, 28, 1)).decode(), s.looked()
    source = "messages[0].content[1].source."
    for wrong, *says in ((block(image[:-1]), source + "data", "base64"), (block(image[:-3] + "!=="), source + "data", "base64"),
                         (block(""), source + "data"), (block(image, "image/gif"), source + "media_type", "set it to image/png"),
                         (block(b"Low dams are no image."), "image_data", "not a PNG")):
        bad(s, *says, messages=with_images(wrong))
    same(s.looked(), before, "what the engines looked at")
    fails(anthropic.BadRequestError, 400, "invalid_request_error",
          lambda: s.client.messages.count_tokens(model=s.model, messages=with_images(block(image))), "messages[0].content[1].type", "the engine alone")


@check
def unknown_model(s):
    for stream in (False, True):
        fails(anthropic.NotFoundError, 404, "not_found_error", lambda: s.create(model="no-such-model", stream=stream), "no-such-model", s.model)
    fails(anthropic.NotFoundError, 404, "not_found_error", lambda: s.client.messages.count_tokens(model="no-such-model", messages=SAY))


@check
def over_long_prompt(s):
    long = [{"role": "user", "content": "weir " * 150_000}]
    bad(s, "tokens", messages=long)
    want(s.client.messages.count_tokens(model=s.model, messages=long).input_tokens > 150_000, "a long prompt cannot be counted")


@check
def at_rest(s):
    s.idle()


if __name__ == "__main__":
    main(Suite)
