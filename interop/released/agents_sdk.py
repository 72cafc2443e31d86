"""OpenAI's Agents SDK, over Responses and over chat completions."""

import asyncio

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI
from pydantic import BaseModel

from check import ASK, BASE, MODEL, check, run, want, words

set_tracing_disabled(True)
CALLED = []


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    CALLED.append(city)
    return "rain"


class Report(BaseModel):
    city: str
    degrees: int


def agent(kind, **more):
    client = AsyncOpenAI(base_url=BASE + "/v1", api_key="none")
    return Agent(name="a", instructions="Be brief.", model=kind(model=MODEL, openai_client=client), **more)


def loop(kind):
    CALLED.clear()
    result = asyncio.run(Runner.run(agent(kind, tools=[weather]), ASK, max_turns=4))
    want(len(CALLED) == 1 and CALLED[0], CALLED)
    words(result.final_output)


def streamed(kind):
    async def go():
        text, result = "", Runner.run_streamed(agent(kind), ASK)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        want(words(text) == result.final_output, text, result.final_output)

    asyncio.run(go())


def forced(kind):
    """A tool is forced beside an output type: the tool comes first, then the document."""
    CALLED.clear()
    one = agent(kind, tools=[weather], output_type=Report, model_settings=ModelSettings(tool_choice="required"))
    report = asyncio.run(Runner.run(one, ASK, max_turns=4)).final_output
    want(isinstance(report, Report) and len(CALLED) > 0, report, CALLED)


@check
def responses_loop():
    loop(OpenAIResponsesModel)


@check
def chat_loop():
    loop(OpenAIChatCompletionsModel)


@check
def responses_stream():
    streamed(OpenAIResponsesModel)


@check
def chat_stream():
    streamed(OpenAIChatCompletionsModel)


@check
def responses_forced_tool_and_type():
    forced(OpenAIResponsesModel)


@check
def chat_forced_tool_and_type():
    forced(OpenAIChatCompletionsModel)


run()
