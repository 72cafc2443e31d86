"""Plays the scheduler of an SGLang engine with what a real one is made of: SGLang's
own structures, codec and validation, over libzmq. Only the model is missing.

    python sched.py --sglang FOLDER --weir DIR --say 1,2,3     the schedulers of weir's launcher
    python sched.py --sglang FOLDER --in IPC --out IPC ...     those of SGLang's own server

Every --step seconds each running request gets an id: those to --say, over and over,
or with --clock the time in milliseconds, modulo that number. A line of JSON on
standard output tells when it is ready, and each time that it is at rest, what it has
counted.

With --role prefill it draws one id, and ends as a prefill engine does when its KV was
fetched; with --role decode it begins when there is KV to fetch. They meet by files in
--meet, named by the room. Both hold each request to what a half has, and tell by a line
where it would meet the other.
"""

import argparse
import json
import os
import sys
import time

import launcher

p = argparse.ArgumentParser()
p.add_argument("--sglang", required=True)
p.add_argument("--weir")
p.add_argument("--in", dest="input")
p.add_argument("--out")
p.add_argument("--say", default="1")
p.add_argument("--clock", type=int, default=0)
p.add_argument("--step", type=float, default=0.0)
p.add_argument("--role", default="null")
p.add_argument("--meet")
p.add_argument("--registry", type=int, default=8998, help="the port at which a prefill engine is met")
p.add_argument("--start", type=int, default=0, help="steps begin when this many requests are there")
args = p.parse_args()
weir = launcher.of(args.sglang)

import zmq  # noqa: E402
from array import array  # noqa: E402

from sglang.srt.managers import io_struct as io  # noqa: E402
from sglang.version import __version__  # noqa: E402

VOCAB = 128000
say = [int(i) for i in args.say.split(",")]
context = zmq.Context()


def connect(kind, name):
    s = context.socket(kind)
    s.set_hwm(0)
    s.connect(name)
    return s


if args.weir:
    args.input, args.out = f"ipc://{args.weir}/in", f"ipc://{args.weir}/out"
    said = os.path.join(args.weir, "engine.json")
    if os.path.exists(said):
        os.remove(said)
inbox = connect(zmq.PULL, args.input)
answers, outputs = connect(zmq.PUSH, args.out), connect(zmq.PUSH, args.out)
if args.weir:
    weir.write(args.weir, {
        "form": weir.FORM, "sglang": __version__, "instance": str(os.getpid()), "served_model_name": "sim", "context_length": 100000,
        "max_req_input_len": 99990, "vocab_size": VOCAB, "dp_size": 1, "enable_priority_scheduling": True, "lora": {}, "wire": weir.structures(), **({} if args.role == "null" else {
            "bootstrap_host": "127.0.0.1" if args.role == "prefill" else None,
            "started": {"skip_tokenizer_init": False, "disaggregation_mode": args.role, "disaggregation_bootstrap_port": args.registry}})})
print(json.dumps({"ready": True, "release": __version__}), flush=True)

counts = dict(added=0, finished=0, aborted=0, ids=0, fences=0)
running, waiting = {}, []
EMPTY = {f: None for f in io.BatchTokenIDOutput.__struct_fields__}
for name in list(EMPTY):
    if name.startswith("spec_"):
        EMPTY[name] = []


class Request:
    def __init__(self, r):
        s = r.sampling_params
        s.verify(VOCAB)  # what SGLang's own front end has done before it sends
        assert s.is_normalized and s.stop_strs == [] and r.stream and type(r.input_ids) is array and len(r.input_ids) < 99990
        self.rid, self.ipc, self.prompt, self.limit, self.n, self.end = r.rid, r.http_worker_ipc, len(r.input_ids), s.max_new_tokens, 0, None
        if args.role != "null":
            assert r.bootstrap_host and r.bootstrap_port and r.bootstrap_room is not None, r
            assert args.role == "decode" or self.limit == 1, s
            self.computed = os.path.join(args.meet, str(r.bootstrap_room))
            self.fetched = self.computed + ".fetched"
            print(json.dumps({"met": [r.bootstrap_host, r.bootstrap_port, r.bootstrap_room]}), flush=True)


def take(m):
    if isinstance(m, io.TokenizedGenerateReqInput):
        counts["added"] += 1
        waiting.append(Request(m))
    elif isinstance(m, io.BatchTokenizedGenerateReqInput):
        for one in m.batch:
            take(one)
    elif isinstance(m, io.AbortReq):
        for r in list(waiting):
            if m.abort_all or r.rid.startswith(m.rid):
                waiting.remove(r)
                counts["aborted"] += 1
                io.sock_send(answers, io.AbortReq(rid=r.rid, finished_reason=m.finished_reason))
        for r in running.values():
            if m.abort_all or r.rid.startswith(m.rid):
                r.end = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    elif isinstance(m, io.ConfigureLoggingReq):
        counts["fences"] += 1
        io.sock_send(outputs, m)
    elif isinstance(m, io.GetInternalStateReq):
        io.sock_send(answers, io.GetInternalStateReqOutput(internal_state={"effective_max_running_requests_per_dp": 4096, "model_path": "m"}))
    else:
        sys.exit(f"sched: {m!r}")


def touch(path):
    open(path, "w").close()


def goes(r):
    """Whether a request has something to do in this step."""
    if args.role == "null" or r.end:
        return True
    if args.role == "prefill":
        touch(r.computed)
        return os.path.exists(r.fetched)
    if not os.path.exists(r.computed):
        return False
    if r.n == 0:
        touch(r.fetched)
    return True


def step():
    for r in waiting:
        running[r.rid] = r
    waiting.clear()
    reqs = [r for r in running.values() if goes(r)]
    now = int(time.monotonic() * 1000) % args.clock if args.clock else 0
    rids, ends, ids = [], [], []
    for r in reqs:
        if r.end is None:
            ids.append(array("q", [now if args.clock else say[r.n % len(say)]]))
            r.n += 1
            counts["ids"] += 1
            if r.n == r.limit:
                r.end = {"type": "length", "length": 0 if args.role == "prefill" else r.n}
        else:
            ids.append(array("q"))
        if r.end:
            counts["finished" if r.end["type"] == "length" else "aborted"] += 1
            del running[r.rid]
        rids.append(r.rid)
        ends.append(r.end)
    n = len(reqs)
    zeros, yes = [0] * n, [True] * n
    columns = dict(
        EMPTY, rids=rids, http_worker_ipcs=[r.ipc for r in reqs], finished_reasons=ends, decoded_texts=[""] * n, decode_ids=ids,
        read_offsets=[5] * n, output_ids=ids, skip_special_tokens=yes, spaces_between_special_tokens=yes, no_stop_trim=yes,
        prompt_tokens=[r.prompt for r in reqs], reasoning_tokens=zeros, completion_tokens=[r.n for r in reqs], cached_tokens=zeros,
        retraction_counts=zeros, dp_ranks=[None] * n, image_tokens=zeros, audio_tokens=zeros, video_tokens=zeros)
    io.sock_send(outputs, io.BatchTokenIDOutput(**columns))


due, at_rest = time.monotonic(), True
while True:
    busy = running or len(waiting) >= max(args.start, 1)
    wait = max(0, due - time.monotonic()) * 1000 if busy else 100
    if inbox.poll(wait):
        while True:
            try:
                take(io.sock_recv(inbox, zmq.NOBLOCK))
            except zmq.Again:
                break
    if not (running or len(waiting) >= max(args.start, 1)):
        due = time.monotonic()
        if not at_rest and not waiting:
            at_rest = True
            print(json.dumps({"counts": counts}), flush=True)
        continue
    at_rest = False
    if time.monotonic() >= due:
        due += args.step
        step()
