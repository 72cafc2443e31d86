"""pydantic-ai, over chat completions, Responses and Messages."""

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from check import ASK, BASE, MODEL, check, run, want, words


class Report(BaseModel):
    city: str
    degrees: int


def models():
    openai = OpenAIProvider(base_url=BASE + "/v1", api_key="none")
    return {
        "chat": OpenAIChatModel(MODEL, provider=openai),
        "responses": OpenAIResponsesModel(MODEL, provider=openai),
        "messages": AnthropicModel(MODEL, provider=AnthropicProvider(base_url=BASE, api_key="none")),
    }


def each(f):
    for name in models():
        def one(name=name):
            f(models()[name])

        one.__name__ = f"{name}_{f.__name__}"
        check(one)


@each
def loop(model):
    agent, called = Agent(model, system_prompt="Be brief."), []

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        called.append(city)
        return "rain"

    words(agent.run_sync(ASK).output)
    want(len(called) == 1, called)


@each
def document(model):
    report = Agent(model, output_type=Report).run_sync(ASK).output
    want(isinstance(report, Report), report)


@each
def stream(model):
    import asyncio

    async def go():
        async with Agent(model).run_stream(ASK) as result:
            return [part async for part in result.stream_text(delta=True, debounce_by=None)]

    parts = asyncio.run(go())
    want(len(parts) > 0, parts)
    words("".join(parts))


run()
