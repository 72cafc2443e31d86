"""Reads answers with vLLM's parsers, for parsers_test.go to compare.

Standard input: {"tools": [...], "cases": [{"format", "text", "opened", "reasoning"}]}.
Standard output: two lines of JSON for each case, read as a whole and streamed by token:
{"way", "reasoning", "content", "calls": [[name, arguments]], "error"}.

vLLM's source is in the folder that is the argument. What its parsers import of its engine and
servers is stood in for here, as are the packages of the GPU runtime; the parsers are its own.
"""

import importlib
import importlib.machinery
import json
import logging
import signal
import sys
import types
import uuid
from typing import Any, Optional

from pydantic import BaseModel, Field

logging.disable(logging.CRITICAL)
sys.path.insert(0, sys.argv[1])

# The modules that run; all else of vLLM is stood in for.
OWN = ("vllm.tool_parsers", "vllm.parser", "vllm.reasoning")
ABSENT = ("torch", "transformers", "xgrammar", "mistral_common", "openai_harmony", "vllm")


class Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __or__(cls, other): return Any
    def __ror__(cls, other): return Any
    def __iter__(cls): return iter(())


class Anything(metaclass=Meta):
    """Stands for what no parser under test uses."""

    def __init__(self, *a, **k): pass
    def __getattr__(self, name): return Anything()
    def __call__(self, *a, **k): return None
    def __class_getitem__(cls, item): return cls
    def __bool__(self): return False


class Function(BaseModel):
    name: Optional[str] = None
    description: Optional[str] = None
    parameters: Optional[dict] = None
    arguments: Any = None


class Named(BaseModel):
    """A tool, a call or a part of one."""

    id: Optional[str] = Field(default_factory=lambda: uuid.uuid4().hex)
    type: Optional[str] = "function"
    index: Optional[int] = None
    function: Optional[Function] = None


class FunctionCall(Function): pass
class DeltaFunctionCall(Function): pass
class FunctionDefinition(Function): pass
class ToolCall(Named): pass
class DeltaToolCall(Named): pass
class ChatCompletionToolsParam(Named): pass


class Told(BaseModel):
    role: Optional[str] = None
    content: Optional[str] = None
    reasoning: Optional[str] = None
    tools_called: bool = False
    tool_calls: list = Field(default_factory=list)


class DeltaMessage(Told): pass
class ExtractedToolCallInformation(Told): pass


class ChatCompletionRequest(BaseModel):
    model_config = {"extra": "allow"}
    messages: list = []
    tools: Optional[list] = None
    tool_choice: Any = "auto"
    skip_special_tokens: bool = True
    include_reasoning: bool = True
    chat_template_kwargs: Optional[dict] = None
    parallel_tool_calls: bool = True


class ResponsesRequest(BaseModel): pass


STANDINS = {c.__name__: c for c in (
    FunctionCall, DeltaFunctionCall, FunctionDefinition, ToolCall, DeltaToolCall, ChatCompletionToolsParam, DeltaMessage,
    ExtractedToolCallInformation, ChatCompletionRequest, ResponsesRequest)}
STANDINS["init_logger"] = lambda name: logging.getLogger(name)
STANDINS["make_tool_call_id"] = lambda *a, **k: uuid.uuid4().hex
STANDINS["get_tool_call_id_type"] = lambda *a, **k: "random"
STANDINS["is_list_of"] = lambda value, kind, **k: isinstance(value, list) and all(isinstance(v, kind) for v in value)
STANDINS["is_mistral_tokenizer"] = lambda tokenizer: False
STANDINS["VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS"] = 1
STANDINS["VLLMValidationError"] = ValueError
STANDINS["__version__"] = "0"
STANDINS["SpecialTokens"] = types.SimpleNamespace(**{name: types.SimpleNamespace(value=value) for name, value in (
    ("tool_calls", "[TOOL_CALLS]"), ("args", "[ARGS]"), ("call_id", "[CALL_ID]"), ("begin_think", "[THINK]"), ("end_think", "[/THINK]"))})


class StandIn:
    """Finds modules that are stood in for."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT and not name.startswith(OWN):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = [sys.argv[1] + "/vllm"] if spec.name == "vllm" else []
        module.__getattr__ = lambda name: STANDINS.get(name, Anything) if name in STANDINS or not name.startswith("__") else None
        return module

    def exec_module(self, module): pass


sys.meta_path.insert(0, StandIn())

# Our names of formats and vLLM's of their readers.
TOOLS = {
    "hermes": "hermes", "qwen3-coder": "qwen3_coder", "glm-4.5": "glm45", "deepseek-v3": "deepseek_v3", "deepseek-v3.1": "deepseek_v31",
    "deepseek-v3.2": "deepseek_v32", "minimax-m2": "minimax_m2", "kimi-k2": "kimi_k2", "mistral": "mistral", "llama3-json": "llama3_json",
    "pythonic": "pythonic", "apertus": "apertus", "gemma4": "gemma4", "functiongemma": "functiongemma", "json": "hunyuan_a13b",
    "muse-glimmer": "muse_glimmer",
}
# vLLM has a reader for each tag before JSON.
TAGGED = {"<|tool_call|>": "granite", "<function_call>": "granite-20b-fc", "<|action_start|>": "internlm"}
MARKERS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_end|>", "<|tool_call_argument_begin|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>", "｜DSML｜", "<minimax:tool_call>", "</minimax:tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "<|python_tag|>",
    "<|tools_prefix|>", "<|tools_suffix|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<start_function_call>", "<end_function_call>", "<escape>",
    "<tool_calls>", "</tool_calls>", "<|tool_call|>", "<function_call>", "<|action_start|>", "<|plugin|>", "<|action_end|>", "<|channel>", "<channel|>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<seed:tool_call>", "</seed:tool_call>",
    "<|start|>", "<|message|>", "<|eom|>", "<|eot|>",
]


class Tokenizer:
    """A tokenizer of the markers and of characters."""

    all_special_tokens, all_special_ids = MARKERS, list(range(len(MARKERS)))

    def get_vocab(self): return {m: i for i, m in enumerate(MARKERS)}
    vocab = property(get_vocab)

    def encode(self, text, **k):
        ids = []
        while text:
            marker = next((m for m in MARKERS if text.startswith(m)), None)
            ids.append(MARKERS.index(marker) if marker else len(MARKERS) + ord(text[0]))
            text = text[len(marker or "x"):]
        return ids

    def decode(self, ids, **k): return "".join(self.convert_ids_to_tokens(i) for i in ([ids] if isinstance(ids, int) else ids))

    def convert_ids_to_tokens(self, i): return MARKERS[i] if i < len(MARKERS) else chr(i - len(MARKERS))


def reader(format, text=""):
    named = next((TAGGED[tag] for tag in TAGGED if format == "json" and tag in text), TOOLS[format])
    module, name = importlib.import_module("vllm.tool_parsers")._TOOL_PARSERS_TO_REGISTER[named]
    return getattr(importlib.import_module("vllm.tool_parsers." + module), name)


def thinker():
    """Every family of the cases marks reasoning alike: vLLM's own reader of it."""
    return importlib.import_module("vllm.reasoning.deepseek_r1_reasoning_parser").DeepSeekR1ReasoningParser(Tokenizer())


def begin(case, tools):
    """The reasoning, which is always read as a whole, the text after it, and its reader."""
    text, reasoning, request = case["text"], "", ChatCompletionRequest(tools=tools)
    if case["format"] == "muse-glimmer":
        reasoning, _ = muse().extract_reasoning(text, request)
    elif case["reasoning"] and (case["opened"] or "<think>" in text):
        reasoning, text = thinker().extract_reasoning(text, request)
    return reasoning or "", text or "", reader(case["format"], text or "")(Tokenizer(), tools), request


def whole(case, tools):
    reasoning, text, parser, request = begin(case, tools)
    read = parser.extract_tool_calls(text, request)
    calls = [[c.function.name, c.function.arguments if isinstance(c.function.arguments, str) else json.dumps(c.function.arguments)] for c in read.tool_calls or []]
    return reasoning, read.content or "", calls


def by_token(case, tools):
    reasoning, text, parser, request = begin(case, tools)
    ids, content, calls = parser.model_tokenizer.encode(text), "", {}
    for n in range(len(ids)):
        said, now = parser.model_tokenizer.decode(ids[:n]), parser.model_tokenizer.decode(ids[:n + 1])
        delta = parser.extract_tool_calls_streaming(said, now, now[len(said):], ids[:n], ids[:n + 1], ids[n:n + 1], request)
        if delta is None:
            continue
        content += delta.content or ""
        for c in delta.tool_calls or []:
            function = c.function if isinstance(c.function, Function) else Function(**(c.function or {}))
            call = calls.setdefault(c.index, ["", ""])
            call[0] += function.name or ""
            call[1] += function.arguments or ""
    return reasoning, content, [calls[i] for i in sorted(calls)]


def muse():
    """Muse Glimmer's answer is all messages, of which its reader takes those to itself."""
    return importlib.import_module("vllm.reasoning.muse_glimmer_reasoning_parser").MuseGlimmerReasoningParser(Tokenizer())


def give_up(*_):
    raise TimeoutError("after a second of CPU")


def main():
    signal.signal(signal.SIGVTALRM, give_up)
    given = json.load(sys.stdin)
    tools = [ChatCompletionToolsParam(**t) for t in given["tools"]]
    for format in TOOLS:
        reader(format), thinker()  # before the clock runs
    for tag in TAGGED:
        reader("json", tag)
    for case in given["cases"]:
        for way in whole, by_token:
            out = {"way": way.__name__.replace("_", " ")}
            signal.setitimer(signal.ITIMER_VIRTUAL, 1)
            try:
                out["reasoning"], out["content"], out["calls"] = way(case, tools)
            except Exception as e:
                out["error"] = f"{type(e).__name__}: {e}"
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            print(json.dumps(out))


main()
