"""Reads answers with SGLang's parsers, for parsers_test.go to compare.

Standard input: {"tools": [...], "cases": [{"format", "text", "opened", "reasoning"}]}.
Standard output: a line of JSON for each case and way: {"way", "reasoning", "content", "calls": [[name, arguments]], "error"}.

SGLang is in the folder that is the argument, without its dependencies. What its
parsers import of its servers is stood in for here; the parsers are its own.
"""

import importlib
import json
import logging
import re
import signal
import sys
import types
from typing import Any, List, Optional, Union

from pydantic import BaseModel

logging.disable(logging.CRITICAL)


class Anything:
    """Stands for what no parser under test uses."""

    def __init__(self, *a, **k): pass
    def __getattr__(self, name): return Anything()
    def __call__(self, *a, **k): return None
    def __class_getitem__(cls, item): return cls
    def __or__(self, other): return Any
    def __ror__(self, other): return Any


class Function(BaseModel):
    name: Optional[str] = None
    description: Optional[str] = None
    parameters: Optional[object] = None
    strict: bool = False


class Tool(BaseModel):
    type: str = "function"
    function: Function


def stand_in(name, **attributes):
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    module.__getattr__ = lambda attribute: Anything
    sys.modules[name] = module
    return module


def package(name):
    module = types.ModuleType(name)
    module.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name] = module


class Unset:
    def get(self): return False


class Envs:
    def __getattr__(self, name): return Unset()


for name in ("sglang", "sglang.srt", "sglang.srt.function_call", "sglang.srt.parser", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai"):
    package(name)
stand_in("sglang.srt.entrypoints.openai.protocol", Tool=Tool, Function=Function)
stand_in("sglang.srt.environ", envs=Envs())
for name in ("transformers", "xgrammar", "torch"):
    stand_in(name)

# Our names of formats and SGLang's of their readers.
TOOLS = {
    "hermes": "hermes_detector.HermesDetector",
    "qwen3-coder": "qwen3_coder_detector.Qwen3CoderDetector",
    "glm-4.5": "glm4_moe_detector.Glm4MoeDetector",
    "deepseek-v3": "deepseekv3_detector.DeepSeekV3Detector",
    "deepseek-v3.1": "deepseekv31_detector.DeepSeekV31Detector",
    "deepseek-v3.2": "deepseekv32_detector.DeepSeekV32Detector",
    "minimax-m2": "minimax_m2.MinimaxM2Detector",
    "kimi-k2": "kimik2_detector.KimiK2Detector",
    "mistral": "mistral_detector.MistralDetector",
    "llama3-json": "llama32_detector.Llama32Detector",
    "pythonic": "pythonic_detector.PythonicDetector",
    "harmony": "gpt_oss_detector.GptOssDetector",
    "gemma4": "gemma4_detector.Gemma4Detector",
    "apertus": "apertus2509_detector.Apertus2509Detector",
}
REASONING = {
    "hermes": "Qwen3Detector", "qwen3-coder": "Qwen3Detector", "glm-4.5": "Glm45Detector", "deepseek-v3": "DeepSeekR1Detector",
    "deepseek-v3.1": "Qwen3Detector", "deepseek-v3.2": "Qwen3Detector", "minimax-m2": "Qwen3Detector", "kimi-k2": "KimiK2Detector",
    "mistral": "MistralDetector", "llama3-json": "Qwen3Detector", "pythonic": "Qwen3Detector", "harmony": "GptOssDetector",
    "gemma4": "Gemma4Detector", "apertus": "Qwen3Detector",
}


def detector(name):
    module, cls = TOOLS[name].split(".")
    return getattr(importlib.import_module("sglang.srt.function_call." + module), cls)()


def thinker(name, opened, stream):
    if name == "deepseek-v3" and not opened:
        name = "deepseek-v3.1"  # R1's reader takes all text for reasoning at first
    module = importlib.import_module("sglang.srt.parser.reasoning_parser")
    cls = getattr(module, REASONING[name])
    return cls(stream_reasoning=stream, force_reasoning=opened)


def whole(case, tools):
    reasoning, text = "", case["text"]
    if case["reasoning"]:
        r = thinker(case["format"], case["opened"], False).detect_and_parse(text)
        reasoning, text = r.reasoning_text or "", r.normal_text or ""
    d, calls = detector(case["format"]), []
    if d.has_tool_call(text):
        r = d.detect_and_parse(text, tools)
        text, calls = r.normal_text, [[c.name, c.parameters] for c in r.calls]
    return reasoning, text, calls


def tokens(text):
    """Pieces as a tokenizer gives them, roughly: a marker is one."""
    return re.findall(r"<[^<>\n]{1,40}>|\[[A-Z_]+\]|[^<\[]{1,4}|.", text, re.DOTALL)


def streamed(case, tools, pieces):
    d, calls, reasoning, content = detector(case["format"]), {}, "", ""
    t = thinker(case["format"], case["opened"], True) if case["reasoning"] else None
    for piece in pieces(case["text"]):
        if t:
            r = t.parse_streaming_increment(piece)
            reasoning += r.reasoning_text or ""
            piece = r.normal_text or ""
        if not piece:
            continue
        r = d.parse_streaming_increment(piece, tools)
        content += r.normal_text or ""
        for c in r.calls:
            call = calls.setdefault(c.tool_index, ["", ""])
            call[0] = c.name or call[0]
            call[1] += c.parameters or ""
    return reasoning, content, [calls[i] for i in sorted(calls)]


def give_up(*_):
    raise TimeoutError("after a second of CPU")


def main():
    signal.signal(signal.SIGVTALRM, give_up)
    given = json.load(sys.stdin)
    tools = [Tool(**t) for t in given["tools"]]
    for case in given["cases"]:
        for way, read in (("whole", lambda: whole(case, tools)), ("by token", lambda: streamed(case, tools, tokens))):
            out = {"way": way}
            signal.setitimer(signal.ITIMER_VIRTUAL, 1)
            try:
                out["reasoning"], out["content"], out["calls"] = read()
            except Exception as e:
                out["error"] = f"{type(e).__name__}: {e}"
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            print(json.dumps(out))


main()
