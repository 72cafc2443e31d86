"""OpenAI's Agents SDK, over chat completions and Responses."""

import asyncio

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI

from dialogue import BASE, CALL, ENDLESS, LONG, MODEL, SAY, SUNNY, hang_up_async, must_call, run, say
from document import Document

set_tracing_disabled(True)
KINDS = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
CALLED = []


@function_tool
def weather(n: int) -> str:
    """The weather of a place."""
    CALLED.append(n)
    return SUNNY


def agent(api, model=MODEL, settings={}, **more):
    client = AsyncOpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0, timeout=300)
    settings = ModelSettings(**{"temperature": 0, "max_tokens": 200, "include_usage": True} | settings)
    return Agent(name="a", instructions="Be brief.", model=KINDS[api](model=model, openai_client=client), model_settings=settings, **more)


def outcome(result):
    u = result.context_wrapper.usage
    return {"output": str(result.final_output), "usage": [u.requests, u.input_tokens, u.output_tokens], "called": CALLED.copy()}


def whole(one, text=SAY):
    CALLED.clear()
    return outcome(asyncio.run(Runner.run(one, text, max_turns=4)))


def streamed(one, text=SAY):
    async def go():
        CALLED.clear()
        deltas, result = "", Runner.run_streamed(one, text, max_turns=4)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                deltas += event.data.delta
        return {"deltas": deltas} | outcome(result)

    return asyncio.run(go())


def leave(api):
    async def parts():
        result = Runner.run_streamed(agent(api, settings={"max_tokens": LONG}), ENDLESS)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type.endswith(".delta"):
                yield event

    return hang_up_async(parts())


dialogues = {}
for api in KINDS:
    dialogues |= {
        api + " whole": lambda api=api: whole(agent(api)),
        api + " streamed": lambda api=api: streamed(agent(api)),
        api + " tool loop": lambda api=api: whole(agent(api, tools=[weather]), CALL),
        api + " tool loop streamed": lambda api=api: streamed(agent(api, tools=[weather]), CALL),
        api + " output type": lambda api=api: whole(agent(api, output_type=Document), say('{"n": 5}')),
        # The tool comes first, and its result is what the document is asked for with.
        api + " required tool": lambda api=api: whole(agent(api, tools=[weather], settings={"tool_choice": "required"}), must_call("weather", {"n": 5})),
        api + " bad field": lambda api=api: whole(agent(api, settings={"temperature": -1})),
        api + " unknown model": lambda api=api: whole(agent(api, model="no-such-model")),
        api + " hang-up": lambda api=api: leave(api),
    }
run(dialogues)
