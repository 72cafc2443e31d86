"""The official OpenAI Python client against an OpenAI-compatible server.

It prints and exits as suite.py says. By hand:

    python openai_python.py --base-url http://127.0.0.1:8000 \
        --admin-url http://127.0.0.1:8001 --idle-metric weir_requests_in_flight FILE ...

The FILEs are prompts of real text. The server's own extension ignore_eos is
used to make lengths certain, and its engine is expected to say one word for
each token, as weir's simulated engine does: then a lost token shows.
"""

import asyncio
import base64
import json
import time
import typing
import urllib.error
import urllib.request

import openai
import pydantic
from openai.types.responses import response_create_params, response_includable
from suite import ROOM, SAY, Server, check, main, png, same, see, want

EXACT = {"ignore_eos": True}


class Suite(Server):
    def __init__(self, args):
        super().__init__(args)
        options = dict(base_url=self.base + "/v1", api_key="none", max_retries=0, timeout=120)
        self.client = openai.OpenAI(**options)
        self.async_options = options
        self.model = self.client.models.list().data[0].id

    # Requests with this suite's defaults.

    def chat(self, messages=SAY, **kw):
        kw.setdefault("max_tokens", ROOM)
        kw.setdefault("seed", 7)
        kw.setdefault("extra_body", EXACT)
        return self.client.chat.completions.create(model=kw.pop("model", self.model), messages=messages, **kw)

    def complete(self, prompt="Low dams", **kw):
        kw.setdefault("max_tokens", ROOM)
        kw.setdefault("seed", 7)
        kw.setdefault("extra_body", EXACT)
        return self.client.completions.create(model=kw.pop("model", self.model), prompt=prompt, **kw)

    def post(self, path, data, content_type="application/json"):
        """Sends bytes that no client library would send."""
        request = urllib.request.Request(self.base + path, data=data, method="POST",
                                         headers={"Content-Type": content_type})
        try:
            with urllib.request.urlopen(request, timeout=60) as r:
                return r.status, json.load(r)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    def raw_stream(self, headers):
        """Gives the bytes of a stream, as text."""
        body = {"model": self.model, "messages": SAY, "max_tokens": 2, "stream": True}
        request = urllib.request.Request(self.base + "/v1/chat/completions", data=json.dumps(body).encode(), method="POST",
                                         headers={"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=60) as r:
            return r.read().decode()


def read_chat(stream, usage):
    """Reads a chat stream strictly; gives text, finish_reason and usage."""
    return read(stream, usage, "chat.completion.chunk", lambda c: c.delta.content)


def read_completion(stream, usage):
    return read(stream, usage, "text_completion", lambda c: c.text)


def read(stream, usage, kind, text_of):
    reader = Reader(usage, kind, text_of)
    for chunk in stream:
        reader.take(chunk)
    return reader.end()


class Reader:
    def __init__(self, usage, kind, text_of):
        self.asked, self.kind, self.text_of = usage, kind, text_of
        self.text, self.finish, self.usage, self.id = [], None, None, None

    def take(self, chunk):
        same(chunk.object, self.kind, "chunk's object")
        if self.id is None:
            self.id = chunk.id
            want(self.id, "the chunk has no id")
            if self.kind == "chat.completion.chunk":
                same(chunk.choices[0].delta.role, "assistant", "first chunk's role")
        same(chunk.id, self.id, "chunk's id")
        want(self.usage is None, "a chunk after usage")
        if not chunk.choices:
            want(self.asked, "usage that was not asked for")
            want(self.finish is not None, "usage before finish_reason")
            self.usage = chunk.usage
            want(self.usage is not None, "a chunk without choices and usage")
            return
        want(chunk.usage is None, "usage beside choices")
        same(len(chunk.choices), 1, "choices")
        choice = chunk.choices[0]
        same(choice.index, 0, "choice's index")
        want(self.finish is None, "a chunk of the choice after its finish_reason")
        self.text.append(self.text_of(choice) or "")
        self.finish = choice.finish_reason

    def end(self):
        want(self.finish is not None, "no finish_reason")
        same(self.usage is not None, self.asked, "usage present")
        text = "".join(self.text)
        if self.asked and self.finish == "length":
            same(len(text.split()), self.usage.completion_tokens, "words")
        return text, self.finish, self.usage


def same_usage(got, expected):
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        same(getattr(got, name), getattr(expected, name), "usage." + name)
    same(got.total_tokens, got.prompt_tokens + got.completion_tokens, "total_tokens")
    want(got.prompt_tokens > 0, "no prompt tokens")


USAGE = {"stream_options": {"include_usage": True}}


@check
def models(s):
    page = s.client.models.list()
    ids = [m.id for m in page.data]
    want(ids and len(set(ids)) == len(ids), "models", ids)
    for m in page.data:
        same(m.object, "model", "object")
        same(s.client.models.retrieve(m.id).id, m.id, "model by name")
    try:
        s.client.models.retrieve("no-such-model")
    except openai.NotFoundError as e:
        same((e.code, e.param), ("model_not_found", "model"), "error of an unknown model")
    else:
        raise AssertionError("a model that does not exist was found")


@check
def chat(s):
    r = s.chat()
    same(r.object, "chat.completion", "object")
    same(r.model, s.model, "model")
    want(r.id and abs(r.created - time.time()) < 60, "id", r.id, "created", r.created)
    same(len(r.choices), 1, "choices")
    choice = r.choices[0]
    same((choice.index, choice.message.role, choice.finish_reason), (0, "assistant", "length"), "choice")
    same(len(choice.message.content.split()), ROOM, "words")
    same(r.usage.completion_tokens, ROOM, "completion_tokens")
    same_usage(r.usage, r.usage)


@check
def chat_stream(s):
    whole = s.chat()
    text, finish, usage = read_chat(s.chat(stream=True, **USAGE), True)
    same(text, whole.choices[0].message.content, "text")
    same(finish, "length", "finish_reason")
    same_usage(usage, whole.usage)


@check
def chat_stream_without_usage(s):
    text, finish, _ = read_chat(s.chat(stream=True), False)
    same(text, s.chat().choices[0].message.content, "text")
    same(finish, "length", "finish_reason")


@check
def chat_parts_and_roles(s):
    turns = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": [{"type": "text", "text": "Three"}, {"type": "text", "text": " and four."}]},
    ]
    short = s.chat(turns[:2])
    long = s.chat(turns)
    want(long.usage.prompt_tokens > short.usage.prompt_tokens, "more turns, not more prompt tokens")


@check
def completion(s):
    r = s.complete()
    same((r.object, r.model, len(r.choices)), ("text_completion", s.model, 1), "head")
    same((r.choices[0].index, r.choices[0].finish_reason), (0, "length"), "choice")
    same(len(r.choices[0].text.split()), ROOM, "words")
    same(r.usage.completion_tokens, ROOM, "completion_tokens")
    same_usage(r.usage, r.usage)


@check
def completion_stream(s):
    whole = s.complete()
    text, finish, usage = read_completion(s.complete(stream=True, **USAGE), True)
    same((text, finish), (whole.choices[0].text, "length"), "answer")
    same_usage(usage, whole.usage)


@check
def prompt_of_ids(s):
    ids = list(range(300, 340))
    r = s.complete(ids)
    same(r.usage.prompt_tokens, len(ids), "prompt_tokens")
    text, _, usage = read_completion(s.complete(ids, stream=True, **USAGE), True)
    same(text, r.choices[0].text, "text")
    same_usage(usage, r.usage)
    want(s.complete(ids[::-1]).choices[0].text != text, "another prompt, the same answer")


@check
def prompt_of_one_text_in_a_list(s):
    same(s.complete(["Low dams"]).choices[0].text, s.complete("Low dams").choices[0].text, "text")


@check
def max_tokens(s):
    for n in (1, 2, 33):
        r = s.chat(max_tokens=n)
        same((r.usage.completion_tokens, r.choices[0].finish_reason), (n, "length"), f"max_tokens {n}")
        r = s.chat(max_tokens=openai.NOT_GIVEN, max_completion_tokens=n)
        same((r.usage.completion_tokens, r.choices[0].finish_reason), (n, "length"), f"max_completion_tokens {n}")
        r = s.complete(max_tokens=n)
        same((r.usage.completion_tokens, r.choices[0].finish_reason), (n, "length"), f"completions {n}")


@check
def seed(s):
    texts = [s.chat(seed=n).choices[0].message.content for n in (1, 1, 2, 9007199254740993, 9007199254740992)]
    same(texts[0], texts[1], "the same seed twice")
    same(len(set(texts)), 4, "different answers of four seeds")


@check
def sampling(s):
    want(s.chat(temperature=0, top_p=0.5).choices[0].message.content, "no text")
    want(s.complete(temperature=2, top_p=1).choices[0].text, "no text")


@check
def ignored_fields(s):
    r = s.chat(user="someone", metadata={"a": "b"}, store=False)
    same(r.choices[0].message.content, s.chat().choices[0].message.content, "text")


@check
def stop_string(s):
    full = s.chat(max_tokens=64)
    text = full.choices[0].message.content
    for stop in (text[20:26], text[31:32] + text[32:50], text[:3]):
        at = text.index(stop)
        r = s.chat(max_tokens=64, stop=stop)
        same((r.choices[0].message.content, r.choices[0].finish_reason), (text[:at], "stop"), f"stop {stop!r}")
        want(r.usage.completion_tokens < 64, "usage counts what is behind the stop string")
        got, finish, usage = read_chat(s.chat(max_tokens=64, stop=[stop], stream=True, **USAGE), True)
        same((got, finish), (text[:at], "stop"), f"streamed, stop {stop!r}")
        same_usage(usage, r.usage)


@check
def stop_strings(s):
    text = s.complete(max_tokens=64).choices[0].text
    stops = [text[40:46], text[25:31], "\u0000never", "\u00e9\u00e8"]
    r = s.complete(max_tokens=64, stop=stops)
    at = min(text.index(x) for x in stops[:2])
    same((r.choices[0].text, r.choices[0].finish_reason), (text[:at], "stop"), "first of several")
    r = s.complete(max_tokens=64, stop=stops[2:])
    same((r.choices[0].text, r.choices[0].finish_reason), (text, "length"), "none matches")


@check
def request_id(s):
    r = s.client.chat.completions.with_raw_response.create(
        model=s.model, messages=SAY, max_tokens=1, extra_headers={"X-Request-Id": "interop-42"})
    same(r.headers["x-request-id"], "interop-42", "given id")
    first, second = s.chat(max_tokens=1), s.chat(max_tokens=1)
    want(first._request_id and first._request_id != second._request_id, "made ids", first._request_id)


@check
def content_types(s):
    make = s.client.chat.completions.with_raw_response.create
    r = make(model=s.model, messages=SAY, max_tokens=1)
    want(r.headers["content-type"].startswith("application/json"), r.headers["content-type"])
    r = make(model=s.model, messages=SAY, max_tokens=1, stream=True)
    want(r.headers["content-type"].startswith("text/event-stream"), r.headers["content-type"])
    for _ in r.parse():
        pass


@check
def timing(s):
    """A caller that asks is told where the time went, and its client sees the same stream."""
    fields = dict(max_tokens=8, stream=True, stream_options={"include_usage": True})
    expected = read_chat(s.chat(**fields), True)
    r = s.client.chat.completions.with_raw_response.create(
        model=s.model, messages=SAY, seed=7, extra_body=EXACT, extra_headers={"X-Weir-Timing": "1"}, **fields)
    want("total;dur=" in r.headers["server-timing"], r.headers["server-timing"])
    same(read_chat(r.parse(), True)[:2], expected[:2], "the stream")
    want(": weir {" in s.raw_stream({"X-Weir-Timing": "1"}), "the comment")


@check
def long_prompt(s):
    words = "a low dam holds nothing back and shows how high the water stands ".split()
    text = " ".join(words[i * 7 % len(words)] for i in range(8000))[:30000]
    same(len(text), 30000, "characters")
    whole = s.chat([{"role": "user", "content": text}])
    want(whole.usage.prompt_tokens > 3000, "prompt_tokens", whole.usage.prompt_tokens)
    got, _, usage = read_chat(s.chat([{"role": "user", "content": text}], stream=True, **USAGE), True)
    same(got, whole.choices[0].message.content, "text")
    same_usage(usage, whole.usage)


@check
def real_texts(s):
    """Every file as a prompt, eight at a time, streamed and whole."""
    want(len(s.args.files) >= 24, "only", len(s.args.files), "files of text")
    texts = []
    for name in s.args.files:
        with open(name, encoding="utf-8", newline="") as f:
            texts.append((name, f.read()[:20000]))

    async def one(client, gate, name, text, n):
        async with gate:
            if n % 2:
                make = lambda **kw: client.completions.create(model=s.model, prompt=text, **kw)
                reader = Reader(True, "text_completion", lambda c: c.text)
            else:
                message = [{"role": "user", "content": text}]
                make = lambda **kw: client.chat.completions.create(model=s.model, messages=message, **kw)
                reader = Reader(True, "chat.completion.chunk", lambda c: c.delta.content)
            fixed = dict(max_tokens=ROOM, seed=n, extra_body=EXACT)
            async for chunk in await make(stream=True, **USAGE, **fixed):
                reader.take(chunk)
            got, finish, usage = reader.end()
            whole = await make(**fixed)
            choice = whole.choices[0]
            same(got, choice.text if n % 2 else choice.message.content, name)
            same((finish, choice.finish_reason, usage.completion_tokens), ("length", "length", ROOM), name)
            same_usage(usage, whole.usage)

    async def all_of_them():
        gate = asyncio.Semaphore(8)
        async with openai.AsyncOpenAI(**s.async_options) as client:
            await asyncio.gather(*(one(client, gate, name, text, n) for n, (name, text) in enumerate(texts)))

    asyncio.run(all_of_them())


@check
def many_streams(s):
    """64 streams at once say what each says alone."""
    alone = [s.chat(seed=n).choices[0].message.content for n in range(4)]

    async def one(client, n):
        reader = Reader(True, "chat.completion.chunk", lambda c: c.delta.content)
        async for chunk in await client.chat.completions.create(
                model=s.model, messages=SAY, max_tokens=ROOM, seed=n % 4, stream=True, extra_body=EXACT, **USAGE):
            reader.take(chunk)
        same(reader.end()[0], alone[n % 4], f"stream {n}")

    async def all_of_them():
        async with openai.AsyncOpenAI(**s.async_options) as client:
            await asyncio.gather(*(one(client, n) for n in range(64)))

    asyncio.run(all_of_them())


@check
def abort_in_mid_stream(s):
    for make in (s.chat, s.complete):
        stream = make(max_tokens=2000, stream=True)
        seen = 0
        for _ in stream:
            seen += 1
            if seen == 5:
                break
        same(seen, 5, "chunks before the abort")
        stream.close()
        s.idle()


# Errors. Each must be the class that the client maps it to, name the field,
# and carry what the client shows its user.


def fails(kind, status, param, make, code=None, says=()):
    try:
        made = make()
    except openai.APIStatusError as e:
        same(type(e), kind, f"class of {e}")
        same(e.status_code, status, "status")
        if param is not None:
            same(e.param, param, f"param of {e.message!r}")
        if code is not None:
            same(e.code, code, "code")
        want(e.type, "the error has no type")
        want(e.body.get("message"), "the error has no message")
        want(e.request_id, "the error has no request id")
        for word in says:
            want(word in e.body["message"], f"{e.body['message']!r} does not say {word!r}")
        return
    if hasattr(made, "close"):
        made.close()
    raise AssertionError(f"accepted; want {kind.__name__} about {param}")


@check
def malformed_fields(s):
    bad = openai.BadRequestError
    for stream in (False, True):
        for param, value in (
            ("max_tokens", -1), ("max_tokens", 0), ("max_tokens", "many"), ("max_tokens", 1.5),
            ("temperature", -1), ("temperature", "hot"), ("top_p", 2), ("seed", "x"), ("stop", 7),
            ("stream_options", "yes"),
        ):
            extra = {"extra_body": {param: value, "stream": stream}}
            fails(bad, 400, param, lambda: s.chat(max_tokens=openai.NOT_GIVEN, seed=openai.NOT_GIVEN, **extra), says=(param,))
            fails(bad, 400, param, lambda: s.complete(max_tokens=openai.NOT_GIVEN, seed=openai.NOT_GIVEN, **extra), says=(param,))
    fails(bad, 400, "messages", lambda: s.chat([]))
    fails(bad, 400, "messages[0].content", lambda: s.chat([{"role": "user", "content": 7}]))
    fails(bad, 400, "messages[1].role", lambda: s.chat([SAY[0], {"role": "wizard", "content": "x"}]))
    fails(bad, 400, "messages", lambda: s.chat("hello"))
    fails(bad, 400, "prompt", lambda: s.complete(""))
    fails(bad, 400, "prompt", lambda: s.complete([]))
    fails(bad, 400, "prompt", lambda: s.complete([5, 4294967295]), says=("prompt[1]",))
    fails(bad, 400, "stream", lambda: s.chat(extra_body={"stream": "yes"}))


@check
def missing_fields(s):
    for path, body, param in (
        ("/v1/chat/completions", {"model": s.model}, "messages"),
        ("/v1/completions", {"model": s.model}, "prompt"),
        ("/v1/chat/completions", {"messages": SAY}, "model"),
    ):
        status, answer = s.post(path, json.dumps(body).encode())
        same((status, answer["error"]["param"]), (400, param), path)


@check
def malformed_json(s):
    status, answer = s.post("/v1/chat/completions", b'{\n  "model": "x",\n  "messages": [}')
    same(status, 400, "status")
    message = answer["error"]["message"]
    want("line 3" in message and "column" in message, "no place in", message)
    for body in (b"", b"[]", b"null", b'{"model":"x"} {}', b'{"model":"\xff","messages":[]}',
                 b'{"model":"x","model":"y","messages":[]}'):
        status, answer = s.post("/v1/chat/completions", body)
        same(status, 400, f"status of {body!r}")
        want(answer["error"]["message"], body)


@check
def wrong_content_type(s):
    body = json.dumps({"model": s.model, "messages": SAY, "max_tokens": 1}).encode()
    status, answer = s.post("/v1/chat/completions", body, "text/plain")
    same(status, 415, "status")
    want("application/json" in answer["error"]["message"], answer)
    status, _ = s.post("/v1/chat/completions", body, "application/json; charset=utf-8")
    same(status, 200, "status with a charset")


@check
def unknown_model(s):
    for make in (s.chat, s.complete):
        for stream in (False, True):
            fails(openai.NotFoundError, 404, "model", lambda: make(model="no-such-model", stream=stream),
                  code="model_not_found", says=("no-such-model", s.model))


@check
def unknown_path(s):
    fails(openai.NotFoundError, 404, None, code="unknown_url", says=("/v1/nothing-here",),
          make=lambda: s.client.post("/nothing-here", body={"model": s.model}, cast_to=object))


@check
def unsupported_fields(s):
    bad = openai.BadRequestError
    odd = {"type": "function", "function": {"name": "f", "grammar": "x", "parameters": {"type": "object", "properties": {}}}}
    for param, kw in (
        ("tools[0].function.grammar", dict(tools=[odd])), ("n", dict(n=129)),
        ("top_logprobs", dict(top_logprobs=3)),
        ("frobnicate", dict(extra_body={"frobnicate": 1})),
    ):
        for stream in (False, True):
            fails(bad, 400, param, lambda: s.chat(stream=stream, **kw), says=(param,))
    for param, kw in (("n", dict(n=129)), ("logprobs", dict(logprobs=21)), ("echo", dict(echo=True)),
                      ("best_of", dict(best_of=2)), ("suffix", dict(suffix="x"))):
        fails(bad, 400, param, lambda: s.complete(**kw), says=(param,))


def by_choice(stream, n, kind, text_of):
    """Reads a stream of n choices strictly: each as if it were alone."""
    readers = [Reader(False, kind, text_of) for _ in range(n)]
    usage, scores = None, [[] for _ in range(n)]
    for chunk in stream:
        if not chunk.choices:
            want(all(r.finish for r in readers), "usage before the last finish_reason")
            usage = chunk.usage
            continue
        want(usage is None, "a chunk after usage")
        same(len(chunk.choices), 1, "choices of a chunk")
        choice = chunk.choices[0]
        at = choice.index
        want(at < n, f"choice {at} of {n}")
        choice.index = 0
        if choice.logprobs is not None:
            scores[at].append(choice.logprobs)
        readers[at].take(chunk)
    ended = [r.end() for r in readers]
    return [e[0] for e in ended], [e[1] for e in ended], usage, scores


@check
def choices(s):
    """n answers, each with a seed of its own: the same streamed and whole."""
    whole = s.chat(n=3)
    same([c.index for c in whole.choices], [0, 1, 2], "indices")
    texts = [c.message.content for c in whole.choices]
    same(len(set(texts)), 3, "different answers")
    same(texts[0], s.chat().choices[0].message.content, "the first of three")
    same([c.finish_reason for c in whole.choices], ["length"] * 3, "finish reasons")
    same(whole.usage.completion_tokens, 3 * ROOM, "completion_tokens")
    same(whole.usage.prompt_tokens, s.chat().usage.prompt_tokens, "prompt_tokens")
    got, finish, usage, _ = by_choice(s.chat(n=3, stream=True, stream_options={"include_usage": True}), 3,
                                      "chat.completion.chunk", lambda c: c.delta.content)
    same(got, texts, "texts")
    same(finish, ["length"] * 3, "finish reasons")
    same(usage.completion_tokens, 3 * ROOM, "completion_tokens")
    s.idle()


@check
def prompts_in_a_list(s):
    prompts = ["Low dams", "High dams", [5, 6, 7]]
    alone = [s.complete(p) for p in prompts]
    whole = s.complete(prompts, n=2)
    same([c.index for c in whole.choices], list(range(6)), "indices")
    same([c.text for c in whole.choices[::2]], [a.choices[0].text for a in alone], "texts")
    same(whole.usage.prompt_tokens, sum(a.usage.prompt_tokens for a in alone), "prompt_tokens")
    same(whole.usage.completion_tokens, 6 * ROOM, "completion_tokens")
    got, _, _, _ = by_choice(s.complete(prompts, n=2, stream=True), 6, "text_completion", lambda c: c.text)
    same(got, [c.text for c in whole.choices], "texts")
    s.idle()


@check
def logprobs(s):
    """Of a chat: an entry for each token, with its bytes; streamed and whole alike."""
    whole = s.chat(logprobs=True, top_logprobs=3)
    entries = whole.choices[0].logprobs.content
    same(len(entries), ROOM, "entries")
    same(b"".join(bytes(e.bytes) for e in entries).decode(), whole.choices[0].message.content, "the entries' bytes")
    for e in entries:
        same(len(e.top_logprobs), 3, "alternatives")
        same(e.top_logprobs[0].token, e.token, "the most probable token")
        same(e.top_logprobs[0].logprob, e.logprob, "its log probability")
        want(0 >= e.logprob >= e.top_logprobs[1].logprob >= e.top_logprobs[2].logprob, e)
    _, _, _, scores = by_choice(s.chat(logprobs=True, top_logprobs=3, n=2, stream=True), 2, "chat.completion.chunk", lambda c: c.delta.content)
    same([e for part in scores[0] for e in part.content], entries, "streamed entries")
    same(len([e for part in scores[1] for e in part.content]), ROOM, "entries of the second choice")
    same([e.top_logprobs for e in s.chat(logprobs=True).choices[0].logprobs.content], [[]] * ROOM, "alternatives")
    same(s.chat().choices[0].logprobs, None, "logprobs that were not asked for")


@check
def logprobs_of_completions(s):
    whole = s.complete(logprobs=2)
    got, text = whole.choices[0].logprobs, whole.choices[0].text
    for part in (got.tokens, got.token_logprobs, got.top_logprobs, got.text_offset):
        same(len(part), ROOM, "one each token")
    for token, value, top, offset in zip(got.tokens, got.token_logprobs, got.top_logprobs, got.text_offset):
        same(text[offset:offset + len(token)], token, "the text at the offset")
        same(top[token], value, "the token among the alternatives")
    _, _, _, scores = by_choice(s.complete(logprobs=2, stream=True), 1, "text_completion", lambda c: c.text)
    same([o for part in scores[0] for o in part.text_offset], got.text_offset, "streamed offsets")
    same([v for part in scores[0] for v in part.token_logprobs], got.token_logprobs, "streamed log probabilities")


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}


def ask(s, messages=SAY, kwargs=None, **kw):
    """A chat that ends by itself; kwargs are the simulated model's chat template's."""
    return s.chat(messages, max_tokens=600, extra_body={"chat_template_kwargs": kwargs or {}}, **kw)


def read_reply(stream):
    """Puts a streamed answer with calls and reasoning together, strictly."""
    reasoning, content, calls, finish = "", "", [], None
    for chunk in stream:
        want(finish is None or not chunk.choices, "a chunk after finish_reason")
        for choice in chunk.choices:
            d = choice.delta
            kinds = [k for k in ("content", "reasoning_content", "tool_calls") if getattr(d, k, None)]
            want(len(kinds) <= 1, "one chunk with", kinds)
            reasoning += getattr(d, "reasoning_content", None) or ""
            content += d.content or ""
            for c in d.tool_calls or []:
                if c.id:
                    same((c.index, c.type), (len(calls), "function"), "a call's beginning")
                    calls.append([c.id, c.function.name, ""])
                else:
                    same(c.index, len(calls) - 1, "a call that goes on")
                    want(c.function.name is None, "a name twice")
                calls[c.index][2] += c.function.arguments or ""
            finish = choice.finish_reason
    return reasoning, content, calls, finish


def right_call(name, arguments):
    same(name, "get_weather", "name")
    arguments = json.loads(arguments)
    want(isinstance(arguments.get("city"), str), "arguments", arguments)
    want(set(arguments) <= {"city", "days"} and isinstance(arguments.get("days", 0), int), "arguments", arguments)


@check
def tool_call(s):
    r = ask(s, tools=[WEATHER])
    choice = r.choices[0]
    same(choice.finish_reason, "tool_calls", "finish_reason")
    want(choice.message.content is None, "content", choice.message.content)
    call = choice.message.tool_calls[0]
    same(call.type, "function", "type")
    want(call.id.startswith("call_"), "id", call.id)
    right_call(call.function.name, call.function.arguments)
    _, content, calls, finish = read_reply(ask(s, tools=[WEATHER], stream=True))
    same((content, finish), ("", "tool_calls"), "streamed")
    same([c[1:] for c in calls], [[call.function.name, call.function.arguments]], "streamed calls")
    want(calls[0][0] != call.id, "the same id twice")


@check
def tool_loop(s):
    """Calls, results, and the answer, as an agent does."""
    messages = list(SAY)
    for turn in range(3):
        message = ask(s, messages, tools=[WEATHER]).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            right_call(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps({"degrees": 18})})
    same(turn, 1, "turns before the answer")
    want(message.content.split(), "no answer")


@check
def parallel_tool_calls(s):
    two = {"calls": 2}
    _, _, calls, finish = read_reply(ask(s, kwargs=two, tools=[WEATHER], stream=True))
    same((len(calls), finish), (2, "tool_calls"), "calls")
    want(calls[0][0] != calls[1][0], "one id for two calls")
    for call in calls:
        right_call(*call[1:])
    r = ask(s, kwargs=two, tools=[WEATHER], parallel_tool_calls=False)
    same(len(r.choices[0].message.tool_calls), 1, "calls when one is wanted")
    same(r.choices[0].finish_reason, "tool_calls", "finish_reason")
    s.idle()


@check
def tool_choice(s):
    r = ask(s, tools=[WEATHER], tool_choice="none")
    want(not r.choices[0].message.tool_calls and r.choices[0].message.content, r)
    now = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {"zone": {"enum": ["utc", "local"]}}, "required": ["zone"]}}}
    forced = {"type": "function", "function": {"name": "now"}}
    for choice in ("required", forced):
        for kw in ({}, {"parallel_tool_calls": False}):
            r = ask(s, tools=[WEATHER, now], tool_choice=choice, **kw)
            calls = [[c.function.name, c.function.arguments] for c in r.choices[0].message.tool_calls]
            same((r.choices[0].finish_reason, r.choices[0].message.content), ("tool_calls", None), "forced")
            want(len(calls) == 1 or choice == "required" and not kw, calls)
            for name, arguments in calls:
                if name == "now":
                    want(json.loads(arguments)["zone"] in ("utc", "local"), arguments)
                else:
                    right_call(name, arguments)
            want(choice == "required" or calls[0][0] == "now", calls)
            _, content, streamed, finish = read_reply(ask(s, tools=[WEATHER, now], tool_choice=choice, stream=True, **kw))
            same((content, finish, [c[1:] for c in streamed]), ("", "tool_calls", calls), "streamed")
    unknown = {"type": "function", "function": {"name": "no_such_tool"}}
    fails(openai.BadRequestError, 400, "tool_choice.function.name", lambda: ask(s, tools=[WEATHER], tool_choice=unknown), says=("no_such_tool",))


@check
def parsed_tools(s):
    """The client's own helper makes tools of types, which are strict, and types of calls."""
    class Weather(pydantic.BaseModel):
        city: str
        days: int

    tool = openai.pydantic_function_tool(Weather, name="get_weather")
    same(tool["function"]["strict"], True, "strict")
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("auto", "required", named):
        kw = dict(model=s.model, messages=SAY, tools=[tool], tool_choice=choice, max_tokens=600)
        r = s.client.chat.completions.parse(**kw)
        calls = r.choices[0].message.tool_calls
        want(calls and all(isinstance(c.function.parsed_arguments, Weather) for c in calls), choice, r)
        with s.client.chat.completions.stream(**kw) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion().choices[0].message.tool_calls
        same([c.function.parsed_arguments for c in streamed], [c.function.parsed_arguments for c in calls], "streamed")


@check
def tool_call_cut(s):
    whole = ask(s, tools=[WEATHER]).choices[0].message.tool_calls[0].function.arguments
    r = s.chat(tools=[WEATHER], max_tokens=20, extra_body={})
    same(r.choices[0].finish_reason, "length", "finish_reason")
    part = r.choices[0].message.tool_calls[0].function.arguments
    want(whole.startswith(part) and len(part) < len(whole), part, "is no beginning of", whole)


@check
def reasoning(s):
    think = {"enable_thinking": True}
    r = ask(s, kwargs=think)
    m = r.choices[0].message
    want(m.reasoning_content.split() and m.content.split(), m)
    want("think>" not in m.reasoning_content + m.content, m)
    reasoning, content, calls, finish = read_reply(ask(s, kwargs=think, stream=True))
    same((reasoning, content, calls, finish), (m.reasoning_content, m.content, [], r.choices[0].finish_reason), "streamed")
    reasoning, content, calls, finish = read_reply(ask(s, kwargs=think, tools=[WEATHER], stream=True))
    want(reasoning.split() and len(calls) == 1, "reasoning and a call", reasoning, calls)
    same((content, finish), ("", "tool_calls"), "with tools")


def respond(s, input="Tell me about low dams.", **kw):
    body = {"seed": 7, **kw.pop("body", {})}
    return s.client.responses.create(model=s.model, input=input, extra_body=body, **kw)


def read_events(stream):
    """Reads a stream strictly; gives the types of its events in order, the text of its
    deltas by their type, and the answer that ends it."""
    types, said, last = [], {}, None
    for n, event in enumerate(stream):
        same(event.sequence_number, n, event.type)
        types.append(event.type)
        want(last is None, event.type, "after the end")
        if event.type.endswith(".delta"):
            said[event.type] = said.get(event.type, "") + event.delta
        if event.type in ("response.completed", "response.incomplete", "response.failed"):
            last = event.response
    want(last, "the stream has no end", types)
    return types, said, last


def items(r):
    return [(o.type, getattr(o, "name", None), getattr(o, "arguments", None),
             [(c.type, c.text) for c in getattr(o, "content", None) or []]) for o in r.output]


GAUGE = {"type": "function", "name": "gauge", "description": "Reads a gauge.", "strict": True,
         "parameters": {"type": "object", "properties": {"river": {"type": "string"}}, "required": ["river"],
                        "additionalProperties": False}}


@check
def responses(s):
    fields = dict(instructions="Be brief.", max_output_tokens=ROOM, body=EXACT, metadata={"a": "b"})
    r = respond(s, **fields)
    same((r.status, r.incomplete_details.reason, len(r.output_text.split()), r.metadata, r.store),
         ("incomplete", "max_output_tokens", ROOM, {"a": "b"}, False), "answer")
    same((r.usage.output_tokens, r.usage.input_tokens + ROOM), (ROOM, r.usage.total_tokens), "usage")
    types, said, last = read_events(respond(s, stream=True, **fields))
    same((said["response.output_text.delta"], last.output_text, last.usage), (r.output_text, r.output_text, r.usage), "streamed")
    same((types[:4], types[-1]), (["response.created", "response.in_progress", "response.output_item.added",
                                   "response.content_part.added"], "response.incomplete"), "events")


@check
def responses_stream_helper(s):
    echo = {"chat_template_kwargs": {"content": "echo"}}
    asked = [{"role": "user", "content": [{"type": "input_text", "text": "F\u00fcnf \"Boote\"\n\U0001f6a3"}]}]
    with s.client.responses.stream(model=s.model, input=asked, extra_body=echo) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    same((text, final.output_text, final.status), (asked[0]["content"][0]["text"],) * 2 + ("completed",), "echo")


@check
def responses_tool_loop(s):
    asked = [{"role": "user", "content": "How high is the river?"}]
    r = respond(s, asked, tools=[GAUGE], reasoning={"effort": "low"})
    same([o.type for o in r.output], ["reasoning", "function_call"], "items")
    call = r.output[1]
    want(isinstance(json.loads(call.arguments)["river"], str), call)
    with s.client.responses.stream(model=s.model, input=asked, tools=[GAUGE], reasoning={"effort": "low"},
                                   extra_body={"seed": 7}) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    same(items(streamed), items(r), "streamed")
    same(streamed.output[1].parsed_arguments, json.loads(call.arguments), "parsed arguments")
    for answer in (r, streamed):  # its items go back as they are
        more = asked + answer.output + [{"type": "function_call_output", "call_id": answer.output[1].call_id, "output": "2 m"}]
        r = respond(s, more, tools=[GAUGE], max_output_tokens=ROOM, body=EXACT)
        same(([o.type for o in r.output], len(r.output_text.split())), (["message"], ROOM), "after the call")


@check
def responses_tool_choice(s):
    other = {**GAUGE, "name": "other"}
    for choice, names in (({"type": "function", "name": "other"}, ["other"]), ("none", []),
                          ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "gauge"}]}, ["gauge"])):
        r = respond(s, tools=[GAUGE, other], tool_choice=choice, parallel_tool_calls=False, max_output_tokens=200)
        same([o.name for o in r.output if o.type == "function_call"], names, choice)


@check
def responses_parse(s):
    class Dam(pydantic.BaseModel):
        name: str
        heights: list[float]

    r = s.client.responses.parse(model=s.model, input="A low dam", text_format=Dam)
    want(isinstance(r.output_parsed, Dam), r)
    with s.client.responses.stream(model=s.model, input="A low dam", text_format=Dam) as stream:
        for _ in stream:
            pass
        same(stream.get_final_response().output_parsed, r.output_parsed, "streamed")
    r = respond(s, text={"format": {"type": "json_object"}})
    want(isinstance(json.loads(r.output_text), dict), r.output_text)


@check
def responses_reasoning(s):
    r = respond(s, reasoning={"effort": "low"}, max_output_tokens=200)
    same([o.type for o in r.output], ["reasoning", "message"], "items")
    thought = r.output[0].content[0].text
    want(0 < len(thought.split()) <= r.usage.output_tokens_details.reasoning_tokens < r.usage.output_tokens, r.usage)
    _, said, last = read_events(respond(s, reasoning={"effort": "low"}, max_output_tokens=200, stream=True))
    same((said["response.reasoning_text.delta"], last.usage, items(last)), (thought, r.usage, items(r)), "streamed")
    _, said, last = read_events(respond(s, reasoning={"effort": "low", "summary": "auto"}, max_output_tokens=200, stream=True))
    same((said["response.reasoning_summary_text.delta"], last.output[0].summary[0].text), (thought, thought), "as a summary")


@check
def responses_logprobs(s):
    """Entries are of the text's tokens alone: reasoning and markers have none."""
    def entries(logprobs):
        return [(e.token, e.logprob, [(t.token, t.logprob) for t in e.top_logprobs]) for e in logprobs]

    fields = dict(reasoning={"effort": "low"}, max_output_tokens=200, top_logprobs=2, include=["message.output_text.logprobs"])
    r = respond(s, **fields)
    same(([o.type for o in r.output], r.top_logprobs), (["reasoning", "message"], 2), "answer")
    part = r.output[1].content[0]
    same(b"".join(bytes(e.bytes) for e in part.logprobs if not e.token.startswith("<|")).decode().strip(), part.text.strip(), "bytes")
    for e in part.logprobs:
        same(len(e.top_logprobs), 2, "alternatives")
        want(0 >= e.logprob, e)
    got, done = [], None
    for event in respond(s, stream=True, **fields):
        if event.type == "response.output_text.delta":
            got += entries(event.logprobs)
        if event.type == "response.output_text.done":
            done = entries(event.logprobs)
        if event.type == "response.completed":
            same(entries(event.response.output[1].content[0].logprobs), got, "at the end")
    same((got, done), (entries(part.logprobs),) * 2, "streamed")
    same(respond(s).output[0].content[0].logprobs, [], "logprobs that were not asked for")
    fails(openai.BadRequestError, 400, "top_logprobs", lambda: respond(s, top_logprobs=2), says=("needs include",))


@check
def responses_fields(s):
    """The fields that this client knows, and what it can ask to be included: each is
    known here too, and none is an unknown field."""
    fields = response_create_params.ResponseCreateParamsBase.__annotations__
    want(len(fields) >= 33, "only", list(fields))
    taken = []
    for name in [*fields, "stream"]:
        body = {"model": s.model, "input": "x", "max_output_tokens": 1, name: [{"odd": [7]}]}
        status, answer = s.post("/v1/responses", json.dumps(body).encode())
        if status == 200:
            taken.append(name)
            continue
        error = answer["error"]
        want(status == 400 and error["param"].startswith(name) and "there is no field" not in error["message"], name, answer)
    same(sorted(taken), ["access_programs", "context_management", "image", "max_tool_calls", "prompt_cache_key", "prompt_cache_options",
                         "prompt_cache_retention", "safety_identifier", "service_tier", "store", "truncation", "user"], "ignored")
    words = typing.get_args(response_includable.ResponseIncludable)
    want(len(words) >= 8, "only", words)
    for word in words:
        body = {"model": s.model, "input": "x", "max_output_tokens": 1, "include": [word]}
        status, answer = s.post("/v1/responses", json.dumps(body).encode())
        same(status, 200, (word, answer))


@check
def left_out(s):
    """What was left out of a request is named in the head of its answer, which this client gives."""
    def named(make):
        raw = make()
        answer = raw.parse()
        if hasattr(answer, "close"):
            want(list(answer), "an empty stream")
        return raw.headers.get("weir-ignored")

    chat, responses = s.client.chat.completions.with_raw_response, s.client.responses.with_raw_response
    ask = dict(model=s.model, messages=SAY, max_tokens=2)
    same(named(lambda: chat.create(**ask)), None, "a plain request")
    for stream in (False, True):
        same(named(lambda: chat.create(stream=stream, store=True, verbosity="low", user="u", **ask)), "store, user, verbosity", "chat")
        same(named(lambda: responses.create(model=s.model, input="x", max_output_tokens=2, stream=stream, truncation="auto",
                                            tools=[{"type": "web_search"}], include=["web_search_call.results"], prompt_cache_key="k")),
             "include[] web_search_call.results, prompt_cache_key, tools[] web_search*, truncation", "responses")
    with s.client.chat.completions.with_streaming_response.create(stream=True, prediction={"type": "content", "content": "x"}, **ask) as raw:
        same(raw.headers.get("weir-ignored"), "prediction", "a streaming response")
        want(list(raw.iter_lines()), "an empty stream")


@check
def usage_so_far(s):
    """With continuous_usage_stats each chunk has its choice's usage so far."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    for make in (lambda **kw: s.chat(**kw), lambda **kw: s.complete(**kw)):
        chunks = list(make(stream=True, n=2, stream_options=options))
        want(all(c.usage.prompt_tokens > 0 and c.usage.total_tokens == c.usage.prompt_tokens + c.usage.completion_tokens for c in chunks), chunks)
        for index in (0, 1):
            so_far = [c.usage.completion_tokens for c in chunks if c.choices and c.choices[0].index == index]
            want(so_far == sorted(so_far) and so_far[-1] == ROOM, so_far)
        same((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], 2 * ROOM), "the last chunk")


@check
def forced_beside_a_format(s):
    """A tool that must be called wins over a format, as a helper asks for both that puts a model's answer into a class."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        answer = s.client.chat.completions.create(model=s.model, messages=SAY, max_tokens=200, tools=[tool], tool_choice=choice, response_format=shape)
        want("city" in json.loads(answer.choices[0].message.tool_calls[0].function.arguments), answer)
    flat = {"type": "function", "strict": True, **tool["function"]}
    answer = respond(s, max_output_tokens=200, tools=[flat], tool_choice="required", text={"format": {"type": "json_object"}})
    want([it for it in answer.output if it.type == "function_call"], answer)


def data_url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def of_data(ask):
    """What asks with URLs of images, for images."""
    return lambda *images: ask(*map(data_url, images))


def chat_with(*urls):
    images = [{"type": "image_url", "image_url": {"url": url, "detail": "auto"}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": SAY[0]["content"]}, *images]}]


def input_with(*urls):
    images = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in urls]
    return [{"role": "user", "content": [{"type": "input_text", "text": SAY[0]["content"]}, *images]}]


@check
def chat_images(s):
    def whole(*urls):
        r = s.chat(chat_with(*urls))
        same_usage(r.usage, r.usage)
        return r.choices[0].message.content, r.usage.prompt_tokens, r.usage.completion_tokens

    def streamed(*urls):
        text, finish, usage = read_chat(s.chat(chat_with(*urls), stream=True, **USAGE), True)
        same_usage(usage, usage)
        same(finish, "length", "finish_reason")
        return text, usage.prompt_tokens, usage.completion_tokens

    see(s, of_data(whole), of_data(streamed))


@check
def responses_images(s):
    fields = dict(max_output_tokens=ROOM, body=EXACT)

    def answer(r):
        same(r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens, "total_tokens")
        return r.output_text, r.usage.input_tokens, r.usage.output_tokens

    def streamed(*urls):
        _, said, last = read_events(respond(s, input_with(*urls), stream=True, **fields))
        same(said["response.output_text.delta"], last.output_text, "text of events")
        return answer(last)

    see(s, of_data(lambda *urls: answer(respond(s, input_with(*urls), **fields))), of_data(streamed))


@check
def image_errors(s):
    """Of what is no base64 the field is named; that it is no image the engine alone knows."""
    image, before = data_url(png(28, 28, 1)), s.looked()
    for stream in (False, True):
        for param, make in (("messages[0].content[1].image_url.url", lambda url: s.chat(chat_with(url), stream=stream)),
                            ("input[0].content[1].image_url", lambda url: respond(s, input_with(url), stream=stream))):
            for url, word in ((image[:-1], "base64"), (image[:-3] + "!==", "base64"), ("data:image/png;base64,", "no data"),
                              (data_url(png(28, 28, 1), "image/gif"), "set it to image/png"), (data_url(b"RIFF", "text/plain"), "want one of kind image"),
                              ("file:///a.png", "http or https")):
                fails(openai.BadRequestError, 400, param, lambda: make(url), says=(param, word))
            fails(openai.BadRequestError, 400, None, lambda: make(data_url(b"Low dams are no image.")), says=("image_data", "not a PNG"))
    same(s.looked(), before, "what the engines looked at")
    s.idle()


@check
def responses_errors(s):
    bad = openai.BadRequestError
    fails(bad, 400, "previous_response_id", lambda: respond(s, previous_response_id="resp_1"), says=("send the conversation in input",))
    fails(bad, 400, "tool_choice", lambda: respond(s, tools=[{"type": "web_search"}], tool_choice="required"), says=("web_search",))
    fails(bad, 400, "tool_choice.type", lambda: respond(s, tools=[{"type": "web_search"}], tool_choice={"type": "web_search_preview"}))
    fails(bad, 400, "background", lambda: respond(s, background=True))
    fails(bad, 400, "input", lambda: respond(s, "weir " * s.args.overlong_words, stream=True), code="context_length_exceeded")
    fails(openai.NotFoundError, 404, None, lambda: s.client.responses.retrieve("resp_1"), says=("keeps no answers",))
    fails(openai.NotFoundError, 404, None, lambda: s.client.responses.delete("resp_1"), says=("keeps no answers",))


@check
def over_long_prompt(s):
    text = "weir " * s.args.overlong_words
    for stream in (False, True):
        fails(openai.BadRequestError, 400, "messages", code="context_length_exceeded", says=("tokens",),
              make=lambda: s.chat([{"role": "user", "content": text}], stream=stream))
    fails(openai.BadRequestError, 400, "prompt", lambda: s.complete(text), code="context_length_exceeded")


@check
def at_rest(s):
    s.idle()


if __name__ == "__main__":
    main(Suite)
