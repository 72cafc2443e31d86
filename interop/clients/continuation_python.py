"""The official OpenAI and Anthropic Python clients over streams whose engine is killed.

It prints and exits as suite.py says. It kills the engines that --engine-pid names, at
--engine-state, three in each check, so that a check wants a server of its own:

    python continuation_python.py --only chat --base-url URL --admin-url URL \
        --engine-state URL --engine-pid PID --engine-state URL --engine-pid PID ...

The engines are weir's simulated ones, whose next id is a function of all before. One
answer has reasoning, text and a call. An engine stalls after so many tokens of it, and is
killed when the client has what these are.
"""

import json
import os
import signal
import time
import urllib.request

import anthropic
import openai
from suite import Server, check, main, same, want

ARGUMENTS = '{"city": "Delft and all the towns around it", "days": 3}'
ASKED = f"""[weir-sim {{"content": "echo", "think": "medium"}}]
Low dams hold back little water, and high ones much.
<tool_call>
{{"name": "get_weather", "arguments": {ARGUMENTS}}}
</tool_call>"""
SAY = [{"role": "user", "content": ASKED}]
ROOM = 600
TOOL = {"name": "get_weather", "description": "The weather in a city."}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
PARTS = ["reasoning", "text", "arguments"]


class Answer:
    """A stream as its client reads it. reached is called with the characters read so far, after each event."""

    def __init__(self, reached=lambda chars: None):
        self.reached, self.chars = reached, 0
        self.parts = dict.fromkeys(PARTS, "")
        self.kinds = []  # of events; those of one kind in a row are one
        self.end = None  # what a client has besides, ids of this one answer aside
        self.id = None

    def take(self, kind, part, piece):
        if kind and self.kinds[-1:] != [kind]:
            self.kinds.append(kind)
        if part and piece:
            self.parts[part] += piece
            self.chars += len(piece)
            self.reached(self.chars)


class Suite(Server):
    def __init__(self, args):
        super().__init__(args)
        options = dict(api_key="none", max_retries=0, timeout=60)
        self.openai = openai.OpenAI(base_url=self.base + "/v1", **options)
        self.anthropic = anthropic.Anthropic(base_url=self.base, **options)
        self.model = self.openai.models.list().data[0].id
        self.engines = dict(zip(args.engine_state, map(int, args.engine_pid), strict=True))

    def fault(self, urls, *faults):
        for url in urls:
            body = json.dumps({"faults": faults}).encode()
            urllib.request.urlopen(urllib.request.Request(url.removesuffix("/state") + "/faults", body, method="POST"), timeout=60).close()

    def cut(self, read, tokens, chars):
        """The answer of a stream whose engine is killed when the client has so many tokens of
        it, and the client's error."""
        killed = []

        def kill(got):
            if got < chars or killed:
                return
            same(got, chars, "characters of a stalled stream")
            end = time.monotonic() + 60
            while len(busy := [url for url in self.engines if self.engine(url)]) != 1:  # a probe ends by itself
                want(time.monotonic() < end, "engines that run something:", busy)
                time.sleep(0.02)
            killed.extend(busy)
            pid = self.engines.pop(busy[0])
            self.args.engine_state.remove(busy[0])
            self.fault(self.engines)
            os.kill(pid, signal.SIGKILL)

        answer = Answer(kill)
        self.fault(self.engines, f"stall,after={tokens}")
        try:
            read(self, answer)
        except (openai.APIError, anthropic.APIError) as e:
            return answer, e
        want(killed, f"the stream ended before {chars} characters, at {answer.chars}")
        return answer, None

    def record(self, answer):
        self.idle()  # the record of a request is there when it has ended
        with urllib.request.urlopen(f"{self.args.admin_url}/timeline/{answer.id}", timeout=60) as r:
            return json.load(r)


def chat(s, a, **options):
    """Reads a chat; options are of its stream. It gives how many tokens each event is up to, where that was asked for."""
    stream = s.openai.chat.completions.create(model=s.model, messages=SAY, max_tokens=ROOM, stream=True, stream_options={"include_usage": True, **options},
                                              tools=[{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}])
    a.id = stream.response.headers["x-request-id"]
    so_far, ids, names, finish, usage = [], set(), [], None, None
    for chunk in stream:
        ids.add(chunk.id)
        usage = chunk.usage
        for choice in chunk.choices:
            d, finish = choice.delta, choice.finish_reason
            calls = d.tool_calls or []
            names += [(c.index, c.function.name, bool(c.id)) for c in calls if c.id or c.function.name]
            for part, piece in (("reasoning", getattr(d, "reasoning_content", None)), ("text", d.content),
                                ("arguments", "".join(c.function.arguments or "" for c in calls))):
                if piece:
                    a.take(part, part, piece)
                    so_far.append((part, usage.completion_tokens if usage else None, a.chars))
    same((len(ids), names, finish), (1, [(0, "get_weather", True)], "tool_calls"), "ids, calls and end")
    a.end = usage.to_dict()
    return so_far


def responses(s, a):
    deltas = {"response.reasoning_text.delta": "reasoning", "response.output_text.delta": "text", "response.function_call_arguments.delta": "arguments"}
    with s.openai.responses.stream(model=s.model, input=SAY, max_output_tokens=ROOM,
                                   tools=[{"type": "function", **TOOL, "parameters": SCHEMA}]) as stream:
        for number, event in enumerate(stream):
            same(event.sequence_number, number, "sequence_number")
            if event.type == "response.created":
                a.id = event.response.id.removeprefix("resp_")
            a.take(event.type, deltas.get(event.type), getattr(event, "delta", None))
        r = stream.get_final_response()
    thought, said, call = r.output
    same((thought.content[0].text, said.content[0].text, call.arguments), tuple(a.parts.values()), "the response and its events")
    a.end = (r.status, call.name, [o.status for o in r.output], r.usage.to_dict())


def messages(s, a):
    with s.anthropic.messages.stream(model=s.model, messages=SAY, max_tokens=ROOM, tools=[{**TOOL, "input_schema": SCHEMA}]) as stream:
        a.id = stream.response.headers["request-id"]
        for event in stream:
            part, field = {"thinking": ("reasoning", "thinking"), "text": ("text", "text"), "input_json": ("arguments", "partial_json")}.get(event.type, (None, ""))
            a.take(None if part else event.type, part, getattr(event, field, None))  # with a part, the client's own
        m = stream.get_final_message()
    thought, said, call = m.content
    same((thought.thinking, said.text, call.input), (a.parts["reasoning"], a.parts["text"], json.loads(a.parts["arguments"])), "the message and its events")
    a.end = (m.stop_reason, call.name, m.usage.to_dict())


def places(s):
    """Where a stream is in the midst of each part: the part, tokens, and characters that the client has."""
    for _ in range(20):  # a machine that stops for a while has tokens come together
        whole = Answer()
        so_far = chat(s, whole, continuous_usage_stats=True)
        same((whole.parts["text"].strip(), whole.parts["arguments"]), (ASKED.split("\n")[1], ARGUMENTS), "text and arguments")
        parts = [[e for e in so_far if e[0] == part] for part in PARTS]
        middles = [events[len(events) // 2] for events in parts]
        if all(len(events) >= 5 for events in parts) and all(sum(e[1] == m[1] for e in so_far) == 1 for m in middles):
            return middles
    want(False, "tokens that come one by one:", so_far)


def continues(s, read):
    """A stream of the API goes on in each part as if nothing had happened."""
    uncut = Answer()
    read(s, uncut)
    same(s.record(uncut)["attempts"][0].get("continued"), None, "the record of the uncut stream")
    want(all(uncut.parts.values()), uncut.parts)
    seen = []
    for part, tokens, chars in places(s):
        seen.append(part)
        a, error = s.cut(read, tokens, chars)
        same(error, None, f"error when cut in its {part}")
        same((a.parts, a.kinds, a.end), (uncut.parts, uncut.kinds, uncut.end), f"cut in its {part}")
        record = s.record(a)
        first, second = record["attempts"]
        same((record["outcome"], first.get("continued"), first["given_tokens"], second.get("continued")), ("finished", True, tokens, None), "the record")
        want(first["legs"][0]["engine"] != second["legs"][0]["engine"], "the record names one engine", record)
    same(seen, PARTS, "places")
    s.idle()


@check
def chat_continues(s):
    continues(s, chat)


@check
def responses_continue(s):
    continues(s, responses)


@check
def messages_continue(s):
    continues(s, messages)


@check
def without(s):
    """With continuation off, the client has an error after what had come."""
    for read, kind, (part, tokens, chars) in zip((chat, responses, messages), (openai.APIError, openai.APIError, anthropic.APIStatusError), places(s)):
        a, error = s.cut(read, tokens, chars)
        same((type(error), a.chars), (kind, chars), f"{read.__name__}, cut in its {part}: error and characters")
        want("the engine" in str(error), error)
    s.idle()


if __name__ == "__main__":
    main(Suite)
