"""The structures of vLLM's engine-core wire, as msgspec types.

load() gives them as written here from the wire's facts. load(DIR) gives those of a
release: the class definitions in DIR/vllm, an unpacked wheel, taken out of their
modules one by one. The modules themselves cannot be imported without torch: with
stubs in its place 67 of them load, down to the registration of custom operators,
before one fails.
"""

import ast
import builtins
import dataclasses
import enum
import pathlib
import sys
import types
import typing

import msgspec

MODULES = {
    "vllm/lora/request.py": ["LoRARequest"],
    "vllm/outputs.py": ["RequestError"],
    "vllm/sampling_params.py": ["*"],
    "vllm/v1/metrics/stats.py": ["PrefillStats", "BaseCacheStats", "CachingMetrics", "PrefixCacheStats", "SchedulerStats"],
    "vllm/v1/engine/__init__.py": ["*"],
    "vllm/v1/engine/utils.py": ["EngineZmqAddresses", "EngineHandshakeMetadata"],
}


class Stub:
    """Stands for a name whose module is not there. Nothing may be called that
    matters: validation that needs one fails the request, as in the engine."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.isupper():
            return 1 << 14  # a limit, such as envs.VLLM_MAX_N_SEQUENCES
        return typing.Any if name[0].isupper() or name == "ndarray" else Stub()


def stand_in(name):
    if name.endswith("Error"):
        return ValueError
    return typing.Any if name[0].isupper() else Stub()


def load(wheel=None):
    return from_wheel(pathlib.Path(wheel)) if wheel else own()


def from_wheel(root):
    """Executes the definitions in a namespace in which what is missing is a stand-in."""
    ns = dict(
        msgspec=msgspec, dataclass=dataclasses.dataclass, field=dataclasses.field,
        Any=typing.Any, Literal=typing.Literal, Annotated=typing.Annotated,
        ClassVar=typing.ClassVar, Mapping=typing.Mapping, Sequence=typing.Sequence, Callable=typing.Callable,
        Optional=typing.Optional, Union=typing.Union, PydanticMsgspecMixin=type("Mixin", (), {"__slots__": ()}),
        __name__="vllm_definitions", __builtins__=__builtins__)
    ns["GetPydanticSchema"] = lambda *a, **k: None
    ns["UtilityResult"] = typing.Any
    for path, names in MODULES.items():
        file = root / path
        if not file.exists():
            continue
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in ns and not hasattr(builtins, node.id):
                ns[node.id] = stand_in(node.id)
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                if not module or module.split(".")[0] not in sys.stdlib_module_names or module == "__future__":
                    continue
                exec(compile(ast.Module([node], []), path, "exec"), ns)
                continue
            if isinstance(node, ast.ClassDef) and names != ["*"] and node.name not in names:
                continue
            if not isinstance(node, ast.ClassDef) and names != ["*"]:
                continue
            code = compile(ast.Module([node], []), path, "exec")
            try:
                exec(code, ns)
            except Exception as e:
                if isinstance(node, ast.ClassDef) and node.name in ESSENTIAL:
                    raise
                print(f"definitions: {path}:{node.lineno} left out: {e!r}", flush=True)
    missing = [n for n in ESSENTIAL if not isinstance(ns.get(n), type)]
    if missing:
        raise SystemExit(f"{root}: no definitions of {missing}")
    return types.SimpleNamespace(**{n: ns[n] for n in ESSENTIAL + OPTIONAL if n in ns})


ESSENTIAL = ["LoRARequest", "EngineCoreRequest", "SamplingParams", "EngineCoreOutput", "EngineCoreOutputs", "UtilityOutput",
             "EngineCoreEvent", "EngineCoreEventType", "FinishReason", "SchedulerStats", "PrefillStats",
             "EngineCoreReadyResponse", "EngineZmqAddresses", "EngineHandshakeMetadata"]
OPTIONAL = ["RequestError"]


def own():
    class FinishReason(enum.IntEnum):
        STOP, LENGTH, ABORT, ERROR, REPETITION = range(5)

    class EngineCoreEventType(enum.IntEnum):
        QUEUED, SCHEDULED, PREEMPTED = 1, 2, 3

    class EngineCoreEvent(msgspec.Struct):
        type: EngineCoreEventType
        timestamp: float

    sampling = [
        ("n", int, 1), ("presence_penalty", float, 0.0), ("frequency_penalty", float, 0.0),
        ("repetition_penalty", float, 1.0), ("temperature", float, 1.0), ("top_p", float, 1.0), ("top_k", int, 0),
        ("min_p", float, 0.0), ("seed", int | None, None), ("stop", typing.Any, None),
        ("stop_token_ids", list[int] | None, None), ("ignore_eos", bool, False), ("max_tokens", int | None, 16),
        ("min_tokens", int, 0), ("logprobs", int | None, None), ("prompt_logprobs", int | None, None),
        ("_eos_token_id", int | None, None), ("_all_stop_token_ids", set[int], msgspec.field(default_factory=set)),
        ("structured_outputs", typing.Any, None), ("logit_bias", dict[int, float] | None, None),
        ("allowed_token_ids", list[int] | None, None), ("extra_args", dict | None, None),
        ("_bad_words_token_ids", list[list[int]] | None, None)]
    SamplingParams = msgspec.defstruct("SamplingParams", sampling, omit_defaults=True)
    nothing = typing.Any
    LoRARequest = msgspec.defstruct("LoRARequest", [
        ("lora_name", str), ("lora_int_id", int), ("lora_path", str, ""), ("base_model_name", str | None, None),
        ("load_inplace", bool, False), ("is_3d_lora_weight", bool, False)], array_like=True, omit_defaults=True)
    EngineCoreRequest = msgspec.defstruct("EngineCoreRequest", [
        ("request_id", str), ("prompt_token_ids", list[int] | None), ("mm_features", list | None),
        ("sampling_params", SamplingParams | None), ("pooling_params", nothing), ("arrival_time", float),
        ("lora_request", LoRARequest | None), ("cache_salt", str | None), ("data_parallel_rank", int | None),
        ("prompt_embeds", nothing, None), ("prompt_is_token_ids", list[bool] | None, None), ("client_index", int, 0),
        ("current_wave", int, 0), ("priority", int, 0), ("trace_headers", dict | None, None), ("resumable", bool, False),
        ("external_req_id", str | None, None), ("reasoning_ended", bool | None, None),
        ("reasoning_parser_kwargs", dict | None, None), ("abort_immediately", bool, False),
        ("session_id", str | None, None), ("kv_hints", nothing, None)], array_like=True, omit_defaults=True)
    PrefillStats = dataclasses.make_dataclass("PrefillStats", [(n, int, 0) for n in (
        "num_prompt_tokens", "num_computed_tokens", "num_cached_tokens", "num_local_cached_tokens",
        "num_external_cached_tokens", "num_cache_creation_tokens")])
    RequestError = dataclasses.make_dataclass("RequestError", [("code", str), ("message", str), ("retryable", bool, False)])
    EngineCoreOutput = msgspec.defstruct("EngineCoreOutput", [
        ("request_id", str), ("new_token_ids", list[int]), ("new_logprobs", nothing, None),
        ("new_prompt_logprobs_tensors", nothing, None), ("pooling_output", nothing, None),
        ("finish_reason", FinishReason | None, None), ("stop_reason", int | str | None, None),
        ("events", list[EngineCoreEvent] | None, None), ("kv_transfer_params", dict | None, None),
        ("ec_transfer_params", dict | None, None), ("trace_headers", dict | None, None),
        ("prefill_stats", PrefillStats | None, None), ("routed_experts", nothing, None), ("num_nans_in_logits", int, 0),
        ("mm_cache_miss_hashes", list[str] | None, None), ("new_sampling_mask", nothing, None),
        ("spec_decode_metrics", nothing, None), ("prompt_token_id_logprobs", nothing, None),
        ("error", RequestError | None, None)], array_like=True, omit_defaults=True)
    UtilityOutput = msgspec.defstruct("UtilityOutput", [
        ("call_id", int), ("failure_message", str | None, None), ("result", nothing, None)], array_like=True)
    # vLLM's Rust client wants each of its members.
    PrefixCacheStats = dataclasses.make_dataclass("PrefixCacheStats", [("reset", bool, False)] + [(n, int, 0) for n in (
        "requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits")])
    SchedulerStats = dataclasses.make_dataclass("SchedulerStats", [
        ("num_running_reqs", int, 0), ("num_waiting_reqs", int, 0), ("num_skipped_waiting_reqs", int, 0),
        ("step_counter", int, 0), ("current_wave", int, 0), ("kv_cache_usage", float, 0.0),
        ("prefix_cache_stats", PrefixCacheStats, dataclasses.field(default_factory=PrefixCacheStats)),
        ("kv_cache_eviction_events", list, dataclasses.field(default_factory=list)),
        ("waiting_lora_adapters", dict, dataclasses.field(default_factory=dict)),
        ("running_lora_adapters", dict, dataclasses.field(default_factory=dict))])
    EngineCoreOutputs = msgspec.defstruct("EngineCoreOutputs", [
        ("engine_index", int, 0), ("outputs", list[EngineCoreOutput], msgspec.field(default_factory=list)),
        ("scheduler_stats", SchedulerStats | None, None), ("timestamp", float, 0.0),
        ("utility_output", UtilityOutput | None, None), ("finished_requests", set[str] | None, None),
        ("wave_complete", int | None, None), ("start_wave", int | None, None), ("weight_version", str | None, None)],
        array_like=True, omit_defaults=True)
    EngineCoreReadyResponse = dataclasses.make_dataclass("EngineCoreReadyResponse", [
        ("max_model_len", int), ("num_gpu_blocks", int), ("block_size", int), ("dp_stats_address", str | None),
        ("dtype", str), ("vllm_version", str), ("world_size", int), ("data_parallel_size", int),
        ("tensor_parallel_size", int, 1), ("pipeline_parallel_size", int, 1), ("decode_context_parallel_size", int, 1),
        ("data_parallel_rank", int, 0), ("max_num_seqs", int, 256), ("max_num_batched_tokens", int, 8192),
        ("instance_id", str, ""), ("supports_lora", bool, False), ("max_loras", int, 0)])
    EngineZmqAddresses = dataclasses.make_dataclass("EngineZmqAddresses", [
        ("inputs", list[str]), ("outputs", list[str]), ("coordinator_input", str | None, None),
        ("coordinator_output", str | None, None), ("frontend_stats_publish_address", str | None, None)])
    EngineHandshakeMetadata = dataclasses.make_dataclass("EngineHandshakeMetadata", [
        ("addresses", EngineZmqAddresses), ("parallel_config", dict[str, int | str | list[int]])])
    return types.SimpleNamespace(**{k: v for k, v in locals().items() if k in ESSENTIAL + OPTIONAL})
