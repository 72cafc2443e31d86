"""A vLLM engine core without a model: libzmq's sockets (pyzmq), msgspec's codec and,
with --wheel, a release's own structures. What it generates is --say, over and over.

Like the engine it reads on one thread and computes on another, decodes requests as
strictly, stops at end ids, stop ids and limits by the engine's rules, and knows
nothing of text. What it did is printed as JSON lines.
"""

import argparse
import collections
import dataclasses
import json
import queue
import struct
import sys
import threading
import time

import msgspec
import zmq

import definitions

parser = argparse.ArgumentParser()
parser.add_argument("--handshake", help="where to say HELLO; else --input and --output")
parser.add_argument("--input")
parser.add_argument("--output")
parser.add_argument("--index", type=int, default=0)
parser.add_argument("--wheel", help="folder with an unpacked wheel of vLLM")
parser.add_argument("--version", default="0.33.0")
parser.add_argument("--say", required=True, help="ids, with commas")
parser.add_argument("--step", type=float, default=0.005, help="seconds")
parser.add_argument("--max-running", type=int, default=256)
parser.add_argument("--context", type=int, default=4096)
parser.add_argument("--connector", choices=["pull", "push"], help="have halves of requests, as with NixlConnector or NixlPushConnector")
parser.add_argument("--engine-id", default="engine")
args = parser.parse_args()
say = [int(i) for i in args.say.split(",")]
d = definitions.load(args.wheel)
ctx = zmq.Context()
identity = args.index.to_bytes(2, "little")


def tell(**what):
    print(json.dumps(what), flush=True)


def connect(kind, at):
    s = ctx.socket(kind)
    if kind == zmq.DEALER:
        s.setsockopt(zmq.IDENTITY, identity)
    s.setsockopt(zmq.LINGER, 2000)
    s.setsockopt(zmq.SNDHWM, 0)
    s.setsockopt(zmq.RCVHWM, 0)
    s.connect(at)
    return s


hand = None
if args.handshake:
    hand = connect(zmq.DEALER, args.handshake)
    status = {"local": False, "headless": True}
    hand.send(msgspec.msgpack.encode({"status": "HELLO", **status}))
    init = msgspec.msgpack.decode(hand.recv(), type=d.EngineHandshakeMetadata)
    args.input, args.output = init.addresses.inputs[0], init.addresses.outputs[0]
    if init.addresses.coordinator_input is not None:
        sys.exit("a coordinator was named, which does not exist")

arrived = queue.SimpleQueue()
sending = queue.SimpleQueue()
ready = {"max_model_len": args.context, "num_gpu_blocks": 1000, "block_size": 16, "dp_stats_address": None,
         "dtype": "bfloat16", "vllm_version": args.version, "world_size": 1, "data_parallel_size": 1,
         "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "decode_context_parallel_size": 1,
         "data_parallel_rank": args.index, "max_num_seqs": args.max_running, "max_num_batched_tokens": 8192,
         "instance_id": "interop", "supports_lora": True, "max_loras": 1}
ready = {f.name: ready[f.name] for f in dataclasses.fields(d.EngineCoreReadyResponse) if f.name in ready}


def read():
    source = connect(zmq.DEALER, args.input)
    source.send(msgspec.msgpack.encode(d.EngineCoreReadyResponse(**ready)))
    add = msgspec.msgpack.Decoder(d.EngineCoreRequest)
    other = msgspec.msgpack.Decoder()
    while True:
        kind, *data = source.recv_multipart()
        # As in the engine, what does not decode ends the thread.
        arrived.put((kind, add.decode(data[0]) if kind == b"\x00" else other.decode(data[0])))


def write():
    sink = connect(zmq.PUSH, args.output)
    encoder = msgspec.msgpack.Encoder()
    while True:
        m = sending.get()
        if isinstance(m, tuple):
            sink.send_multipart([encoder.encode(m[0]), *m[1]])
        else:
            sink.send(m if isinstance(m, bytes) else encoder.encode(m))


def guarded(f):
    def run():
        try:
            f()
        except Exception as e:
            tell(died=f.__name__, error=repr(e))
            raise
    threading.Thread(target=run, daemon=True).start()


guarded(read)
guarded(write)
if hand:
    hand.send(msgspec.msgpack.encode({"status": "READY", **status}))
    hand.close()

counts = collections.Counter()
adapters = {}  # names of those loaded, by id
live = {}  # request id -> state, in order of arrival


def transfer(m):
    """The kv_transfer_params of a request, where there is a connector."""
    return (m.sampling_params.extra_args or {}).get("kv_transfer_params") if args.connector else None


def keeps(r):
    """What a prefill half answers at its end, as NIXL's connectors say it."""
    n = len(r["req"].prompt_token_ids)
    return {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": (list(range(1, n // 16 + 2)),),
            "remote_engine_id": args.engine_id, "remote_request_id": r["req"].request_id, "remote_host": "127.0.0.1", "remote_port": 5600,
            "tp_size": 1, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": n, "remote_blocks_expiry_time": None,
            "transfer_mode": args.connector, "remote_prefill_cached_tokens": n // 2}


def take(kind, m):
    if kind == b"\x00":
        counts["added"] += 1
        p = m.sampling_params
        if m.request_id in live:
            tell(duplicate=m.request_id)
        if m.lora_request is not None:
            counts["with " + adapters[m.lora_request.lora_int_id]] += 1
        params = transfer(m)
        if params and params.get("do_remote_decode"):
            counts["prefill halves"] += 1
        if params and params.get("do_remote_prefill"):
            # The engine ends where one of these is not there.
            for name in ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size", "remote_block_ids"):
                params[name]
            counts["decode halves"] += 1
            tell(fetches=params, id=m.request_id, engine=args.engine_id)
        live[m.request_id] = {"req": m, "n": 0, "queued": time.monotonic(), "scheduled": None,
                              "end": {p._eos_token_id} - {None}, "stop": set(p.stop_token_ids or ())}
        if counts["added"] == 1:
            tell(priority=m.priority, reasoning_ended=getattr(m, "reasoning_ended", None), first={f: repr(getattr(p, f)) for f in ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed",
                 "stop_token_ids", "_eos_token_id", "_all_stop_token_ids", "ignore_eos", "presence_penalty", "frequency_penalty",
                 "repetition_penalty", "min_p", "logit_bias", "structured_outputs")}, prompt=len(m.prompt_token_ids),
                 client=m.client_index)
    elif kind == b"\x01":
        for i in m:
            counts["aborted" if live.pop(i, None) else "aborted_late"] += 1
    elif kind == b"\x02":
        counts["waves"] += 1
    elif kind == b"\x03":
        counts["calls"] += 1
        client, call, method, rest = m
        out = d.UtilityOutput(call_id=call, result=[None, False])
        if method == "add_lora":
            # As the engine does: what is sent becomes the argument's own type.
            adapter = msgspec.convert(rest[0], type=d.LoRARequest)
            if adapter.lora_path.startswith("/adapters/"):
                out.result = [None, True]
                adapters[adapter.lora_int_id] = adapter.lora_name
                tell(loaded=adapter.lora_name, path=adapter.lora_path)
            else:
                out.result, out.failure_message = None, f"Call to add_lora method failed: no adapter at {adapter.lora_path}"
        if method == "die":
            sending.put(b"ENGINE_CORE_DEAD")
        sending.put(d.EngineCoreOutputs(engine_index=args.index, timestamp=time.monotonic(), utility_output=out))


def array(dtype, shape, values, frames):
    """An array as vLLM's encoder writes one: small data in place, larger in a frame of
    the message, whose number stands for it. Here it is in a frame every other time."""
    data = struct.pack(f"<{len(values)}{'f' if dtype == '<f4' else 'i'}", *values)
    if counts["ids"] % 2:
        return [dtype, shape, msgspec.msgpack.Ext(3, data)]
    frames.append(data)
    return [dtype, shape, len(frames)]


def scores(token, n, k, frames):
    """The log probabilities of one token, the n-th: -n/8 its own, and those of the k
    ids from it on. As in a batch with a request that wants more, there is one more
    alternative than was asked for."""
    ids = [token] + [token + j for j in range(k + 1)]
    values = [-n / 8] + [-n / 8 - j for j in range(k + 1)]
    return [array("<i4", [1, k + 2], ids, frames), array("<f4", [1, k + 2], values, frames), array("<i4", [1], [1], frames), None]


def one(i, r, frames):
    p, events = r["req"].sampling_params, None
    out = d.EngineCoreOutput(request_id=i, new_token_ids=[])
    if r["scheduled"] is None:
        r["scheduled"] = now = time.monotonic()
        out.events = [d.EngineCoreEvent(d.EngineCoreEventType.QUEUED, r["queued"]),
                      d.EngineCoreEvent(d.EngineCoreEventType.SCHEDULED, now)]
        n = len(r["req"].prompt_token_ids)
        out.prefill_stats = d.PrefillStats(num_prompt_tokens=n, num_computed_tokens=n - n // 2, num_cached_tokens=n // 2)
    token = say[r["n"] % len(say)]
    r["n"] += 1
    out.new_token_ids.append(token)
    if p.logprobs is not None:
        out.new_logprobs = scores(token, r["n"], p.logprobs, frames)
    if r["n"] >= p.min_tokens and token in r["end"]:
        out.finish_reason = d.FinishReason.STOP
    elif r["n"] >= p.min_tokens and token in r["stop"]:
        out.finish_reason, out.stop_reason = d.FinishReason.STOP, token
    elif r["n"] >= p.max_tokens or len(r["req"].prompt_token_ids) + r["n"] >= args.context:
        out.finish_reason = d.FinishReason.LENGTH
    if out.finish_reason is not None:
        params = transfer(r["req"])
        if params and params.get("do_remote_decode"):
            out.kv_transfer_params = keeps(r)
            tell(keeps=out.kv_transfer_params)
        del live[i]
        counts["finished"] += 1
    counts["ids"] += 1
    return out


tell(ready=True, definitions="wheel" if args.wheel else "own")
last = 0
while True:
    while not arrived.empty() or not live:
        try:
            take(*arrived.get(timeout=0.5))
        except queue.Empty:
            break
    running = list(live.items())[:args.max_running]
    if running:
        time.sleep(args.step)
        frames = []
        outs = [one(i, r, frames) for i, r in running]
        # Requests that this step ended are live no more. vLLM's own client refuses a negative count.
        stats = d.SchedulerStats(num_running_reqs=len(running), num_waiting_reqs=max(len(live) - len(running), 0), kv_cache_usage=0.25)
        m = d.EngineCoreOutputs(engine_index=args.index, timestamp=time.monotonic(), outputs=outs, scheduler_stats=stats)
        sending.put((m, frames) if frames else m)
    if not live and counts != last:
        last = collections.Counter(counts)
        tell(counts=counts, live=len(live))
