"""What the dialogues of the Python clients have in common. Each script gets the URL to ask
and that of the engine behind it, and prints a JSON object for each dialogue:
{"dialogue": NAME, "outcome": OBJECT}, where an outcome is what the client gave its caller.
The engine says what a prompt asks for (../scripted.py)."""

import asyncio
import base64
import json
import sys
import time
import traceback
import urllib.request

BASE, ENGINE = (url.rstrip("/") for url in sys.argv[1:3])
MODEL = "tiny"


def say(*texts):
    """Has the engine say a text, the first of several that it may begin with where its answer is guided."""
    return "say:" + "|".join(base64.b64encode(text.encode()).decode() for text in texts) + "."


def must_call(name, arguments):
    """Has the engine call a tool that it must call. vLLM has it write a call as its parser reads
    it, weir an array of calls, and the arguments alone where the tool was named."""
    return say(json.dumps([{"name": name, "parameters": arguments}]), json.dumps(arguments),
               f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>')


TEXT = "The weir holds the river back, 世界."
SAY = say(TEXT)
CALL = say('<tool_call>\n{"name": "weather", "arguments": {"n": 5}}\n</tool_call>')
SUNNY = say("Sunny.")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a place.", "parameters": SCHEMA}}
ENDLESS = "slowly: Hello"  # the model does not end its answer by itself
LONG = 3000  # tokens of it


def metric(name):
    with urllib.request.urlopen(ENGINE + "/metrics", timeout=60) as r:
        lines = r.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))


def hang_up(stream, close):
    """Reads five parts of a long answer, and leaves."""
    def leave():
        parts = iter(stream)
        for _ in range(5):
            next(parts)
        close(parts)

    return left(leave)


def hang_up_async(parts):
    """hang_up on an asynchronous iterator."""
    async def leave():
        for _ in range(5):
            await anext(parts)
        await parts.aclose()

    return left(lambda: asyncio.run(leave()))


def left(leave):
    """Says what the engine does with a long answer that a client leaves: it must end it long before it would."""
    before = metric("vllm:generation_tokens_total")
    leave()
    end = time.monotonic() + 120
    while metric("vllm:num_requests_running") > 0:
        if time.monotonic() > end:
            return {"engine": "still runs"}
        time.sleep(0.05)
    return {"engine": "ended early" if metric("vllm:generation_tokens_total") - before < LONG * 2 / 3 else "went on to the end"}


def failure(e):
    """An error as a caller sees it: its class, its status, and the field that it names."""
    status = getattr(e, "status_code", None)
    if status is None:
        return {"broke": traceback.format_exc()[-1500:]}
    return {"error": type(e).__name__, "status": status, "names": [n for n in ("temperature", "no-such-model") if n in str(e)]}


def run(dialogues):
    for name, f in dialogues.items():
        try:
            outcome = f()
        except Exception as e:
            outcome = failure(e)
        print(json.dumps({"dialogue": name, "outcome": outcome}), flush=True)
