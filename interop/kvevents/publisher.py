"""SGLang's own publisher of KV events, over libzmq: python publisher.py FILE PORT.

FILE is a release's disaggregation/kv_events.py, which is loaded by itself. The
publisher binds PORT and answers replays at the port after it. What it publishes is
said on standard input, a line of JSON each, and acknowledged by a line:

{"store": IDS, "page": N}  the blocks of a prompt, hashed as SGLang does
{"remove": IDS, "page": N} {"clear": true}
{"lose": COMMAND}          the same, of which nothing is sent
{"flood": N}               as many batches of a prompt of their own each
{"raw": [HEX, ...]}        a message as it is
"""

import hashlib
import importlib.util
import json
import sys
import time
import types


def load(path):
    for name in ["sglang", "sglang.srt", "sglang.srt.runtime_context", "sglang.srt.utils", "sglang.srt.utils.network"]:
        sys.modules[name] = types.ModuleType(name)
    sys.modules["sglang.srt.runtime_context"].get_parallel = None
    sys.modules["sglang.srt.utils.network"].NetworkAddress = None
    spec = importlib.util.spec_from_file_location("kv_events", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["kv_events"] = module
    spec.loader.exec_module(module)
    return module


kv = load(sys.argv[1])
port = int(sys.argv[2])
publisher = kv.ZmqEventPublisher(0, endpoint=f"tcp://*:{port}", replay_endpoint=f"tcp://*:{port + 1}", topic="kv@m", buffer_steps=1000)


def hashes(ids, page):
    digest, out = b"", []
    for i in range(0, len(ids) // page * page, page):
        digest = hashlib.sha256(digest + b"".join(t.to_bytes(4, "little") for t in ids[i : i + page])).digest()
        out.append(int.from_bytes(digest[:8], "big", signed=True))
    return out


def events(c):
    if "clear" in c:
        return [kv.AllBlocksCleared()]
    if "remove" in c:
        return [kv.BlockRemoved(block_hashes=[h]) for h in reversed(hashes(c["remove"], c["page"]))]
    ids, page = c["store"], c["page"]
    parent, out = None, []
    for i, h in enumerate(hashes(ids, page)):
        out.append(kv.BlockStored(block_hashes=[h], parent_block_hash=parent, token_ids=ids[i * page : (i + 1) * page], block_size=page, lora_id=None))
        parent = h
    return out


def publish(events):
    publisher.publish(kv.KVEventBatch(ts=time.time(), events=events))


def settle():
    while publisher._event_queue.unfinished_tasks:
        time.sleep(0.001)


print("ready", flush=True)
for line in sys.stdin:
    c = json.loads(line)
    if "lose" in c:
        settle()
        batch = kv.KVEventBatch(ts=time.time(), events=events(c["lose"]), attn_dp_rank=0)
        publisher._buffer.append((next(publisher._seq_gen), publisher._pack.encode(batch)))
    elif "raw" in c:
        settle()
        publisher._pub.send_multipart([bytes.fromhex(f) for f in c["raw"]])
    elif "flood" in c:
        for i in range(c["flood"]):
            publish(events({"store": [i] * 64, "page": 16}))
    else:
        publish(events(c))
    settle()
    print("done", flush=True)
