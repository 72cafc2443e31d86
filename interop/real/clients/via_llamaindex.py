"""LlamaIndex's client of servers that are like OpenAI's, over chat and completions.
It has no way to leave a stream: one that is closed reads on."""

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from dialogue import BASE, CALL, MODEL, SAY, SUNNY, run


def weather(n: int) -> str:
    """The weather of a place."""
    return SUNNY


def llm(chat=True, model=MODEL, **more):
    return OpenAILike(model=model, api_base=BASE + "/v1", api_key="none", is_chat_model=chat, is_function_calling_model=chat, context_window=4096,
                      **{"temperature": 0, "max_tokens": 200, "max_retries": 0, "timeout": 300} | more)


def user(text):
    return [ChatMessage(role="user", content=text)]


def usage(raw):
    return [raw.usage.prompt_tokens, raw.usage.completion_tokens]


def whole():
    r = llm().chat(user(SAY))
    return {"text": r.message.content, "end": r.raw.choices[0].finish_reason, "usage": usage(r.raw)}


def streamed():
    parts = list(llm().stream_chat(user(SAY)))
    return {"text": "".join(p.delta or "" for p in parts), "whole": parts[-1].message.content}


def loop():
    tool, history = FunctionTool.from_defaults(weather), user(CALL)
    first = llm().chat_with_tools([tool], chat_history=history)
    calls = llm().get_tool_calls_from_response(first)
    said = tool(**calls[0].tool_kwargs)
    history += [first.message, ChatMessage(role="tool", content=str(said), additional_kwargs={"tool_call_id": calls[0].tool_id})]
    last = llm().chat_with_tools([tool], chat_history=history)
    return {"calls": [[c.tool_name, c.tool_kwargs] for c in calls], "text": last.message.content, "more": len(llm().get_tool_calls_from_response(last, error_on_no_tool_call=False))}


def call_streamed():
    last = None
    for last in llm().stream_chat_with_tools([FunctionTool.from_defaults(weather)], chat_history=user(CALL)):
        pass
    return {"calls": [[c.tool_name, c.tool_kwargs] for c in llm().get_tool_calls_from_response(last)]}


def completion():
    r = llm(chat=False).complete(SAY)
    return {"text": r.text, "usage": usage(r.raw)}


def completion_streamed():
    parts = list(llm(chat=False).stream_complete(SAY))
    return {"text": "".join(p.delta or "" for p in parts), "whole": parts[-1].text}


dialogues = {"chat whole": whole, "chat streamed": streamed, "chat tool loop": loop, "chat tool call streamed": call_streamed,
             "completion whole": completion, "completion streamed": completion_streamed}
for name, chat in {"chat": True, "completion": False}.items():
    def ask(chat=chat, **more):
        return llm(chat, **more).chat(user(SAY)) if chat else llm(chat, **more).complete(SAY)

    dialogues |= {
        name + " bad field": lambda ask=ask: ask(additional_kwargs={"temperature": -1}),  # it judges its own
        name + " unknown model": lambda ask=ask: ask(model="no-such-model"),
    }
run(dialogues)
