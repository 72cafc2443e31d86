"""LangChain, over chat completions, Responses and Messages."""

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from dialogue import BASE, CALL, CHAT_TOOL, ENDLESS, LONG, MODEL, SAY, SUNNY, hang_up, run


@tool
def weather(n: int) -> str:
    """The weather of a place."""
    return SUNNY


def model(api, **more):
    options = {"model": MODEL, "api_key": "none", "temperature": 0, "max_tokens": 200, "max_retries": 0} | more
    if api == "messages":
        return ChatAnthropic(base_url=BASE, **options)
    return ChatOpenAI(base_url=BASE + "/v1", stream_usage=True, use_responses_api=api == "responses", **options)


def text(m):
    return m.text if isinstance(m.text, str) else m.text()


def usage(m):
    return [m.usage_metadata["input_tokens"], m.usage_metadata["output_tokens"]]


def calls(m):
    return [[c["name"], c["args"]] for c in m.tool_calls]


def whole(api):
    m = model(api).invoke(SAY)
    return {"text": text(m), "usage": usage(m)}


def streamed(api):
    all = None
    for chunk in model(api).stream(SAY):
        all = chunk if all is None else all + chunk
    return {"text": text(all), "usage": usage(all)}


def loop(api):
    bound, messages = model(api).bind_tools([weather]), [HumanMessage(CALL)]
    first = bound.invoke(messages)
    call = first.tool_calls[0]
    last = bound.invoke(messages + [first, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])])
    return {"calls": calls(first), "text": text(last), "more": calls(last)}


def call_streamed(api):
    all = None
    for chunk in model(api).bind_tools([weather]).stream(CALL):
        all = chunk if all is None else all + chunk
    return {"calls": calls(all)}


def forced(api):
    return {"calls": calls(model(api).bind_tools([CHAT_TOOL], tool_choice="weather").invoke("How?"))}


def leave(api):
    return hang_up(model(api, max_tokens=LONG).stream(ENDLESS), lambda parts: parts.close())


dialogues = {}
for api in ("chat", "responses", "messages"):
    dialogues |= {
        api + " whole": lambda api=api: whole(api),
        api + " streamed": lambda api=api: streamed(api),
        api + " tool loop": lambda api=api: loop(api),
        api + " tool call streamed": lambda api=api: call_streamed(api),
        api + " forced tool": lambda api=api: forced(api),
        api + " bad field": lambda api=api: model(api, temperature=-1).invoke(SAY),
        api + " unknown model": lambda api=api: model(api, model="no-such-model").invoke(SAY),
        api + " hang-up": lambda api=api: leave(api),
    }
run(dialogues)
