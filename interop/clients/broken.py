"""The official Python clients read streams that break after some tokens: each raises, and says why.

    python broken.py --base-url http://127.0.0.1:8000

It prints a line of JSON for each check, as suite.py says.
"""

import argparse
import json

import anthropic
import openai

parser = argparse.ArgumentParser()
parser.add_argument("--base-url", required=True)
base = parser.parse_args().base_url
oai = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0, timeout=60)
ant = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0, timeout=60)
MODEL, SAY, ROOM = "weir-sim", [{"role": "user", "content": "Tell me about low dams."}], 64


def chat():
    for c in oai.chat.completions.create(model=MODEL, messages=SAY, max_tokens=ROOM, stream=True):
        yield c.choices and c.choices[0].delta.content


def chat_helper():
    with oai.chat.completions.stream(model=MODEL, messages=SAY, max_tokens=ROOM) as s:
        for e in s:
            yield e.delta if e.type == "content.delta" else ""
        s.get_final_completion()


def completions():
    for c in oai.completions.create(model=MODEL, prompt="Low dams", max_tokens=ROOM, stream=True):
        yield c.choices and c.choices[0].text


def responses():
    for e in oai.responses.create(model=MODEL, input=SAY, max_output_tokens=ROOM, stream=True):
        yield e.delta if e.type == "response.output_text.delta" else ""


def responses_helper():
    with oai.responses.stream(model=MODEL, input=SAY, max_output_tokens=ROOM) as s:
        for e in s:
            yield e.delta if e.type == "response.output_text.delta" else ""
        s.get_final_response()


def messages():
    for e in ant.messages.create(model=MODEL, messages=SAY, max_tokens=ROOM, stream=True):
        yield e.delta.text if e.type == "content_block_delta" else ""


def messages_helper():
    with ant.messages.stream(model=MODEL, messages=SAY, max_tokens=ROOM) as s:
        yield from s.text_stream
        s.get_final_message()


CHECKS = [chat, chat_helper, completions, responses, responses_helper, messages, messages_helper]
for check in CHECKS:
    text, ok, detail = "", False, "the stream ended as if it were whole"
    try:
        for piece in check():
            text += piece or ""
    except (openai.APIError, anthropic.APIError) as e:
        ok, detail = bool(text) and len(e.message) > 20 and "onnection error" not in e.message, f"{type(e).__name__}: {e.message} (after {text!r})"
    except Exception as e:
        detail = f"{type(e).__name__}: {e} (after {text!r})"
    print(json.dumps({"check": check.__name__, "ok": ok, "detail": detail}))
print(json.dumps({"checks": len(CHECKS)}))
