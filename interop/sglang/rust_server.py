"""Runs SGLang's own Rust server (HTTP, tokenizer, templates, detokenizer, all in one
extension of the released wheel) before a scheduler that is played here: each running
request gets the next id of --say every --step seconds.

    python rust_server.py --sglang FOLDER --model FOLDER --port PORT --say 1,2,3 [--incremental] [--skip-tokenizer]

Requests are decoded by SGLang's own structures. A line of JSON on standard output tells
when it is ready, and each time that it is at rest, what it has counted.
"""

import argparse
import glob
import importlib.util
import json
import os
import time

import launcher

p = argparse.ArgumentParser()
p.add_argument("--sglang", required=True)
p.add_argument("--model", required=True)
p.add_argument("--port", type=int, required=True)
p.add_argument("--say", required=True)
p.add_argument("--step", type=float, default=0.001)
p.add_argument("--incremental", action="store_true")
p.add_argument("--skip-tokenizer", action="store_true")
args = p.parse_args()
launcher.of(args.sglang)

from array import array  # noqa: E402

import msgspec  # noqa: E402
from sglang.srt.managers import io_struct as io  # noqa: E402
from sglang.srt.managers.utils import msgpack_decode_explained  # noqa: E402
from sglang.version import __version__  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

CONTEXT, VOCAB = 100000, 128000
say = [int(i) for i in args.say.split(",")]
tokenizer = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))


def extension():
    (path,) = glob.glob(os.path.join(args.sglang, "sglang", "srt", "rust_extensions", "_server.*.so"))
    spec = importlib.util.spec_from_file_location("_server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ext = extension()
settings = dict(
    model_path=args.model, served_model_name="weir-sim", tokenizer_path=args.model, revision=None, load_format="auto", weight_version="default",
    hicache_storage_backend=None, hicache_storage_backend_extra_config=None, hicache_storage_prefetch_policy="best_effort",
    hicache_write_policy="write_through", host="127.0.0.1", port=args.port, grpc_port=None, log_level="warning", log_level_http=None,
    chat_template=None, default_chat_template_kwargs="{}", tool_call_parser=None, reasoning_parser=None,
    stream_response_default_include_usage=False, tokenizer_worker_num=1, detokenizer_worker_num=1, skip_tokenizer_init=args.skip_tokenizer,
    skip_server_warmup=True, health_generate_headers={}, default_priority_value=None, enable_request_header_overrides=False,
    incremental_streaming_output=args.incremental, disaggregation_mode=ext.DisaggregationMode.Null,
    model_config=ext.ModelConfig(context_len=CONTEXT, vocab_size=VOCAB, is_multimodal=False, model_type="llama",
                                 default_sampling_params=ext.DefaultSamplingParams()),
    preferred_sampling_params=None, default_max_new_tokens=128, lora_ids={}, enable_strict_thinking=False, limit_mm_data_per_request=[],
    allow_auto_truncate=False, enable_return_hidden_states=False, num_reserved_tokens=0, tokenizer_model_max_length=CONTEXT,
    version=__version__, max_total_num_tokens=1000000, deployment_info=json.dumps({"dp_size": 1, "page_size": 16, "kv_event_sources": []}),
    launch_server_info=json.dumps({"dp_size": 1, "page_size": 16, "context_length": CONTEXT, "skip_tokenizer_init": args.skip_tokenizer,
                                   "disaggregation_mode": "null", "max_total_num_tokens": 1000000, "max_req_input_len": CONTEXT - 10,
                                   "incremental_streaming_output": args.incremental}),
    load_snapshot_path=None, load_snapshot_dp_size=0, load_snapshot_dp_rank=0, accelerator=None, num_accelerators=1, metrics=None)
server = ext.Server(ext.ServerArgs(**settings))
print(json.dumps({"ready": True, "release": __version__}), flush=True)

counts = dict(added=0, finished=0, aborted=0, ids=0)
running = {}


class Request:
    def __init__(self, r, prompt):
        s = r.sampling_params
        self.rid, self.prompt, self.limit, self.n, self.end = r.rid, prompt, s.max_new_tokens, 0, None
        self.stop, self.least, self.strings, self.ids = set(s.stop_token_ids or ()), s.min_new_tokens, s.stop_strs or [], []

    def step(self):
        """The next id."""
        id = say[self.n % len(say)]
        self.n += 1
        if self.n >= self.least and id in self.stop:
            self.end = {"type": "stop", "matched": id}
        elif found := self.found(id):
            self.end = {"type": "stop", "matched": found}
        elif self.n == self.limit:
            self.end = {"type": "length", "length": self.n}
        return id

    def found(self, id):
        """The stop string that the text has now: in SGLang that is the scheduler's to find."""
        if self.strings:
            self.ids.append(id)
            text = tokenizer.decode(self.ids)
            return next((x for x in self.strings if x in text), None)


def take(r):
    m = msgpack_decode_explained(r.header)
    if isinstance(m, io.TokenizedGenerateReqInput):
        counts["added"] += 1
        running[m.rid] = Request(m, len(dict(r.buffers)["input_ids"]))
    elif isinstance(m, io.AbortReq):
        for rid in [k for k in running if m.abort_all or k.startswith(m.rid)]:
            del running[rid]
            counts["aborted"] += 1
    else:
        # A question that a real scheduler answers at once.
        state = {"internal_state": {"last_gen_throughput": 0.0, "memory_usage": {}}} if type(m).__name__ == "GetInternalStateReq" else {}
        server.push_control_result(m.rid, msgspec.msgpack.encode(state))


def step():
    rids, ends, prompts, ids = [], [], [], []
    for r in list(running.values()):
        ids.append(array("q", [r.step()]))
        rids.append(r.rid)
        ends.append(r.end)
        prompts.append(r.prompt)
        counts["ids"] += 1
        if r.end:
            counts["finished"] += 1
            del running[r.rid]
    zeros = [0] * len(rids)
    server.push_decode_result_batch(msgspec.msgpack.encode([rids, ends, prompts, [len(i) for i in ids], zeros, zeros]),
                                    [b"".join(i.tobytes() for i in ids)])


told = None
while True:
    if not running:
        server.wait_request(100)
    for r in server.recv_requests(256):
        take(r)
    if running:
        time.sleep(args.step)
        step()
    elif told != counts:
        told = dict(counts)
        print(json.dumps({"counts": counts}), flush=True)
