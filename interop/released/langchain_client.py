"""LangChain's clients of OpenAI and Anthropic."""

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from check import ASK, BASE, MODEL, check, run, want, words


class Report(BaseModel):
    """A report."""

    city: str
    degrees: int


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return "rain in " + city


def models():
    return {
        "chat": ChatOpenAI(model=MODEL, base_url=BASE + "/v1", api_key="none", stream_usage=True),
        "responses": ChatOpenAI(model=MODEL, base_url=BASE + "/v1", api_key="none", use_responses_api=True),
        "messages": ChatAnthropic(model=MODEL, base_url=BASE, api_key="none"),
    }


def each(f):
    for name in models():
        def one(name=name):
            f(models()[name])

        one.__name__ = f"{name}_{f.__name__}"
        check(one)


@each
def loop(model):
    bound, messages = model.bind_tools([weather]), [HumanMessage(ASK)]
    first = bound.invoke(messages)
    want(len(first.tool_calls) == 1 and first.tool_calls[0]["name"] == "weather", first)
    call = first.tool_calls[0]
    last = bound.invoke(messages + [first, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])])
    want(not last.tool_calls, last)
    words(last.text if isinstance(last.text, str) else last.text())


@each
def stream(model):
    text, chunks, usage = "", 0, None
    for chunk in model.stream(ASK):
        part = chunk.text if isinstance(chunk.text, str) else chunk.text()
        text, chunks, usage = text + part, chunks + 1, chunk.usage_metadata or usage
    words(text)
    want(chunks > 0 and usage and usage["output_tokens"] > 0, chunks, usage)


@each
def document(model):
    method = {} if isinstance(model, ChatAnthropic) else {"method": "json_schema"}
    report = model.with_structured_output(Report, **method).invoke(ASK)
    want(isinstance(report, Report), report)


run()
