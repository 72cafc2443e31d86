"""Writes internal/engine/vllmcore/testdata/golden.json: the same messages as each
release of vLLM encodes them, from its own structures.

    python golden.py .venv/vllm > ../../internal/engine/vllmcore/testdata/golden.json
"""

import base64
import dataclasses
import json
import pathlib
import sys

import msgspec

import definitions

golden = {}
for root in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    stdout, sys.stdout = sys.stdout, sys.stderr  # what is left out is said there
    d = definitions.load(root)
    sys.stdout = stdout
    event, kinds = d.EngineCoreEvent, d.EngineCoreEventType
    first = d.EngineCoreOutput("first", [5, 200, 70000], events=[event(kinds.QUEUED, 10.5), event(kinds.SCHEDULED, 10.75)],
                               prefill_stats=d.PrefillStats(num_prompt_tokens=9, num_computed_tokens=5, num_cached_tokens=4))
    stopped = d.EngineCoreOutput("stopped", [2], finish_reason=d.FinishReason.STOP, stop_reason=7,
                                 kv_transfer_params={"do_remote_decode": True, "remote_block_ids": [1, 2]},
                                 trace_headers={"traceparent": "00-1"})
    failed = d.EngineCoreOutput("failed", [], finish_reason=d.FinishReason.ERROR)
    if hasattr(d, "RequestError") and "error" in d.EngineCoreOutput.__struct_fields__:
        failed.error = d.RequestError("validation_error", "why", False)
    step = d.EngineCoreOutputs(engine_index=3, outputs=[first, stopped, failed], timestamp=12.5, finished_requests={"stopped"},
                               scheduler_stats=d.SchedulerStats(num_running_reqs=2, num_waiting_reqs=1, kv_cache_usage=0.25))
    answer = d.EngineCoreOutputs(engine_index=3, timestamp=13.0,
                                 utility_output=d.UtilityOutput(call_id=1 << 40, result=[None, False]))
    wave = d.EngineCoreOutputs(engine_index=3, timestamp=14.0, wave_complete=6)
    word = {"max_model_len": 4096, "num_gpu_blocks": 10, "dp_stats_address": None, "block_size": 16, "dtype": "bfloat16",
            "vllm_version": root.name, "world_size": 1, "data_parallel_size": 4, "max_num_seqs": 256, "instance_id": "one",
            "supports_lora": True, "max_loras": 1}
    fields = dataclasses.fields(d.EngineCoreReadyResponse)
    missing = dataclasses.MISSING
    word = {f.name: word.get(f.name, 1 if f.default is missing and f.default_factory is missing else f.default) for f in fields}
    encode = msgspec.msgpack.Encoder().encode
    golden[root.name] = {name: base64.b64encode(encode(m)).decode() for name, m in (
        ("step", step), ("answer", answer), ("wave", wave), ("word", d.EngineCoreReadyResponse(**word)))}
json.dump(golden, sys.stdout, indent=1)
print()
