"""pydantic-ai, over chat completions, Responses and Messages."""

import asyncio

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from dialogue import BASE, CALL, ENDLESS, LONG, MODEL, SAY, SUNNY, hang_up_async, must_call, run, say
from document import Document


def model(api, name=MODEL):
    if api == "messages":
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=BASE, api_key="none", max_retries=0, timeout=300)))
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0, timeout=300))
    return {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[api](name, provider=provider)


def agent(api, name=MODEL, settings={}, **more):
    return Agent(model(api, name), system_prompt="Be brief.", model_settings={"temperature": 0, "max_tokens": 200} | settings, retries=0, **more)


def outcome(result, **more):
    u = result.usage() if callable(result.usage) else result.usage
    return {"usage": [u.requests, u.input_tokens, u.output_tokens]} | more


def whole(one, text=SAY):
    r = asyncio.run(one.run(text))
    return outcome(r, output=str(r.output))


def streamed(one, text=SAY):
    async def go():
        async with one.run_stream(text) as r:
            deltas = [part async for part in r.stream_text(delta=True, debounce_by=None)]
            return outcome(r, text="".join(deltas), several=len(deltas) > 1)

    return asyncio.run(go())


def loop(api, ask):
    one, called = agent(api), []

    @one.tool_plain
    def weather(n: int) -> str:
        """The weather of a place."""
        called.append(n)
        return SUNNY

    return ask(one, CALL) | {"called": called}


def leave(api):
    async def parts():
        async with agent(api, settings={"max_tokens": LONG}).run_stream(ENDLESS) as r:
            async for part in r.stream_text(delta=True, debounce_by=None):
                yield part

    return hang_up_async(parts())


dialogues = {}
for api in ("chat", "responses", "messages"):
    dialogues |= {
        api + " whole": lambda api=api: whole(agent(api)),
        api + " streamed": lambda api=api: streamed(agent(api)),
        api + " tool loop": lambda api=api: loop(api, whole),
        api + " tool loop streamed": lambda api=api: loop(api, streamed),
        # The document is the arguments of a tool that must be called.
        api + " output tool": lambda api=api: whole(agent(api, output_type=Document), must_call("final_result", {"n": 5})),
        api + " bad field": lambda api=api: whole(agent(api, settings={"temperature": -1})),
        api + " unknown model": lambda api=api: whole(agent(api, name="no-such-model")),
        api + " hang-up": lambda api=api: leave(api),
    }
for api in ("chat", "responses"):
    dialogues[api + " document"] = lambda api=api: whole(agent(api, output_type=NativeOutput(Document)), say('{"n": 5}'))
run(dialogues)
