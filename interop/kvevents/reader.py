"""SGLang's own reading of KV events, over libzmq: python reader.py FILE ENDPOINT REPLAY TOPIC.

FILE is a release's disaggregation/kv_events.py. It subscribes, says "ready" when it
hears, and prints each batch as a line of JSON: whether it was heard, its number, its rank, its events, each
with the tag that the release has for it. For each line on standard input, a number, it
asks for the batches from there on and prints these, and the line "end".
"""

import importlib.util
import json
import sys
import threading
import types

import msgspec
import zmq

for name in ["sglang", "sglang.srt", "sglang.srt.runtime_context", "sglang.srt.utils", "sglang.srt.utils.network"]:
    sys.modules[name] = types.ModuleType(name)
sys.modules["sglang.srt.runtime_context"].get_parallel = None
sys.modules["sglang.srt.utils.network"].NetworkAddress = None
spec = importlib.util.spec_from_file_location("kv_events", sys.argv[1])
kv = importlib.util.module_from_spec(spec)
sys.modules["kv_events"] = kv
spec.loader.exec_module(kv)

decoder = msgspec.msgpack.Decoder(type=kv.KVEventBatch)
context = zmq.Context.instance()
printing = threading.Lock()


def say(line):
    with printing:
        print(line, flush=True)


def batch(seq, payload, live=False):
    b = decoder.decode(payload)
    events = []
    for e in b.events:
        fields = {f: getattr(e, f) for f in e.__struct_fields__}
        events.append({"tag": type(e).__name__, **fields})
    say(json.dumps({"live": live, "seq": int.from_bytes(seq, "big"), "rank": b.attn_dp_rank, "ts": b.ts, "events": events}))


def listen():
    sub = context.socket(zmq.SUB)
    monitor = sub.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    sub.setsockopt_string(zmq.SUBSCRIBE, sys.argv[4])
    sub.connect(sys.argv[2])
    monitor.recv_multipart()
    sub.disable_monitor()
    say("ready")
    while True:
        topic, seq, payload = sub.recv_multipart()
        assert topic.decode() == sys.argv[4], topic
        batch(seq, payload, live=True)


threading.Thread(target=listen, daemon=True).start()
for line in sys.stdin:
    asking = context.socket(zmq.DEALER)
    asking.connect(sys.argv[3])
    asking.send_multipart((b"", int(line).to_bytes(8, "big")))
    while True:
        frames = asking.recv_multipart()
        if frames[-2] == kv.ZmqEventPublisher.END_SEQ:
            break
        batch(frames[-2], frames[-1])
    asking.close()
    say("end")
