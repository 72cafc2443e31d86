"""LlamaIndex's client of servers that are like OpenAI's."""

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from check import ASK, BASE, MODEL, check, run, want, words


def weather(city: str) -> str:
    """The weather of a city."""
    return "rain in " + city


LLM = OpenAILike(model=MODEL, api_base=BASE + "/v1", api_key="none", is_chat_model=True, is_function_calling_model=True, context_window=8192)


@check
def chat():
    words(LLM.chat([ChatMessage(role="user", content=ASK)]).message.content)


@check
def stream():
    parts = [c.delta or "" for c in LLM.stream_chat([ChatMessage(role="user", content=ASK)])]
    want(len(parts) > 0, parts)
    words("".join(parts))


@check
def complete():
    words(LLM.complete(ASK).text)


@check
def loop():
    tool = FunctionTool.from_defaults(weather)
    history = [ChatMessage(role="user", content=ASK)]
    first = LLM.chat_with_tools([tool], chat_history=history)
    calls = LLM.get_tool_calls_from_response(first)
    want(len(calls) == 1 and calls[0].tool_name == "weather", calls)
    said = tool(**calls[0].tool_kwargs)
    history += [first.message, ChatMessage(role="tool", content=str(said), additional_kwargs={"tool_call_id": calls[0].tool_id})]
    last = LLM.chat_with_tools([tool], chat_history=history)
    want(not LLM.get_tool_calls_from_response(last, error_on_no_tool_call=False), last)
    words(last.message.content)


run()
