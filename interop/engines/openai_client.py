"""Checks of what vLLM and SGLang add to the OpenAI API, through the official
OpenAI client, which keeps fields that it does not know.

Each check prints one line of JSON; the last line says how many there are.
"""

import json
import sys
import traceback

import openai

URLS = {"vllm": sys.argv[1], "sglang": sys.argv[2]}
MESSAGES = [{"role": "user", "content": "Hello"}]
EXTRA = {"ignore_eos": True}
checks = []


def check(f):
    checks.append(f)
    return f


@check
def chat(client, wire):
    whole = client.chat.completions.create(model="weir-sim", messages=MESSAGES, max_tokens=12, extra_body=EXTRA)
    assert len(whole.choices[0].message.content.split()) == 12 and whole.usage.completion_tokens == 12
    stream = client.chat.completions.create(model="weir-sim", messages=MESSAGES, max_tokens=12, extra_body=EXTRA, stream=True,
                                            stream_options={"include_usage": True})
    events = list(stream)
    text = "".join(c.delta.content or "" for e in events for c in e.choices)
    assert text == whole.choices[0].message.content, text
    assert events[-1].usage.completion_tokens == 12 and not events[-1].choices
    assert [c.finish_reason for e in events for c in e.choices if c.finish_reason] == ["length"]


@check
def logprobs(client, wire):
    chat = client.chat.completions.create(model="weir-sim", messages=MESSAGES, max_tokens=6, logprobs=True, top_logprobs=3, extra_body=EXTRA)
    entries = chat.choices[0].logprobs.content
    assert len(entries) == 6 and len(entries[0].top_logprobs) == 3
    assert "".join(e.token for e in entries) == chat.choices[0].message.content
    assert entries[0].top_logprobs[0].logprob == entries[0].logprob <= 0
    text = client.completions.create(model="weir-sim", prompt="Once", max_tokens=6, logprobs=2, extra_body=EXTRA)
    assert "".join(text.choices[0].logprobs.tokens) == text.choices[0].text


@check
def token_ids(client, wire):
    text = client.completions.create(model="weir-sim", prompt="Once", max_tokens=6, extra_body={**EXTRA, "return_token_ids": True})
    choice = text.choices[0].model_extra
    assert len(choice["token_ids"]) == 6 and len(choice["prompt_token_ids"]) == text.usage.prompt_tokens
    again = client.completions.create(model="weir-sim", prompt=choice["prompt_token_ids"] + choice["token_ids"][:3], max_tokens=3,
                                      extra_body={**EXTRA, "return_token_ids": True})
    assert again.choices[0].model_extra["token_ids"] == choice["token_ids"][3:], "a continuation says something else"


@check
def stop_reason(client, wire):
    whole = client.completions.create(model="weir-sim", prompt="Once", max_tokens=8, extra_body=EXTRA).choices[0].text
    word = whole.split()[3]
    cut = client.completions.create(model="weir-sim", prompt="Once", max_tokens=8, stop=[word], extra_body=EXTRA).choices[0]
    assert cut.text == whole[: whole.index(word)] and cut.finish_reason == "stop"
    assert cut.model_extra["stop_reason" if wire == "vllm" else "matched_stop"] == word


@check
def metrics(client, wire):
    whole = client.completions.create(model="weir-sim", prompt="Once", max_tokens=8, extra_body=EXTRA)
    if wire == "vllm":
        m = whole.model_extra["metrics"]
        assert m["time_to_first_token_ms"] > 0 and m["mean_itl_ms"] > 0 and m["tokens_per_second"] > 0, m
    else:
        assert whole.model_extra["metadata"] == {"weight_version": "default"}, whole.model_extra


@check
def several(client, wire):
    many = client.completions.create(model="weir-sim", prompt=["Once", "Twice"], n=2, max_tokens=5, extra_body=EXTRA)
    assert [c.index for c in many.choices] == [0, 1, 2, 3] and many.usage.completion_tokens == 20
    assert len({c.text for c in many.choices}) == 4


@check
def models(client, wire):
    (card,) = client.models.list().data
    assert card.id == "weir-sim" and card.owned_by == wire and card.model_extra["max_model_len"] > 0


@check
def tool_call(client, wire):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
    stream = client.chat.completions.create(model="weir-sim", messages=MESSAGES, tools=tools, tool_choice="required", stream=True)
    name, arguments, reason = "", "", None
    for event in stream:
        for choice in event.choices:
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert name == "weather" and reason == "tool_calls" and isinstance(json.loads(arguments)["city"], str), (name, arguments, reason)


@check
def errors(client, wire):
    for bad in [{"n": 0}, {"max_tokens": 10**7}, {"logprobs": False, "top_logprobs": 3}]:
        try:
            client.chat.completions.create(model="weir-sim", messages=MESSAGES, **bad)
        except openai.BadRequestError as e:
            assert e.status_code == 400 and e.body["message"], e.body
        else:
            raise AssertionError(f"{bad} was accepted")


def main():
    for wire, url in URLS.items():
        client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        for f in checks:
            ok, detail = True, ""
            try:
                f(client, wire)
            except Exception:
                ok, detail = False, traceback.format_exc()
            print(json.dumps({"check": f"{wire} {f.__name__}", "ok": ok, "detail": detail}), flush=True)
    print(json.dumps({"checks": len(checks) * len(URLS)}))


main()
