"""The registry at which halves of requests meet, as weir's launcher starts it for a
prefill engine: SGLang's own. SGLang's own code of a prefill engine's ranks registers
there, and that of a decode engine reads it; the latter also reads the registry of a
simulated prefill engine (--sim HOST:PORT). What it reads of either is a line of JSON.

    python registry.py --sglang FOLDER --port PORT --sim HOST:PORT
"""

import argparse
import json
import time
import types

p = argparse.ArgumentParser()
p.add_argument("--sglang", required=True)
p.add_argument("--port", type=int, required=True)
p.add_argument("--sim", required=True)
args = p.parse_args()

import launcher  # noqa: E402

weir = launcher.of(args.sglang)

import requests  # noqa: E402

from sglang.srt.disaggregation.common import conn  # noqa: E402
from sglang.srt.runtime_context import publish  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402

RANKS, PAGE = 2, 16

server_args = ServerArgs(
    model_path="sim", served_model_name="sim", device="cpu", host="127.0.0.1", port=30000, disaggregation_mode="prefill",
    disaggregation_bootstrap_port=args.port, disaggregation_transfer_backend="nixl", load_balance_method="follow_bootstrap_room")
server_args._resolution_finished = True
publish(server_args, role="tokenizer")
held = weir.arguments(server_args)
manager, _ = weir.no_tokenizer_manager(server_args, None)
for _ in range(300):
    try:
        if requests.get(f"http://127.0.0.1:{args.port}/health", timeout=5).ok:
            break
    except requests.ConnectionError:
        time.sleep(0.1)

for rank in range(RANKS):
    one = types.SimpleNamespace(
        dist_init_addr=None, bootstrap_host=weir.bootstrap_host(held), bootstrap_port=args.port, attn_tp_size=1, attn_tp_rank=0, attn_cp_size=1,
        attn_cp_rank=0, attn_dp_size=1, attn_dp_rank=0, pp_size=1, pp_rank=0, system_dp_size=RANKS, system_dp_rank=rank, local_ip="127.0.0.1",
        rank_port=40000 + rank, kv_args=types.SimpleNamespace(page_size=PAGE), kv_cache_dtype_str="auto", kv_layout=None, dsv41_spec_layout=None)
    one._register_topology_row = types.MethodType(conn.CommonKVManager._register_topology_row, one)
    conn.CommonKVManager.register_to_bootstrap(one)


def read(address):
    """What a decode engine with one rank learns of a prefill engine."""
    url = f"http://{address}/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
    info = conn.PrefillServerInfo(**requests.get(url, timeout=5).json())
    receiver = types.SimpleNamespace(bootstrap_addr=address)
    rows = [conn.CommonKVReceiver._get_bootstrap_info_from_server(receiver, rank, 0, 0, 0) for rank in range(RANKS)]
    nobody = conn.CommonKVReceiver._get_bootstrap_info_from_server(receiver, RANKS, 0, 0, 0)
    return {"dp_size": info.dp_size, "page_size": info.page_size, "attn_tp_size": info.attn_tp_size, "attn_cp_size": info.attn_cp_size,
            "pp_size": info.pp_size, "follow_bootstrap_room": info.follow_bootstrap_room, "rows": [sorted(row) for row in rows],
            "nobody": nobody}, [(row["rank_ip"], row["rank_port"]) for row in rows]


own, at = read(f"127.0.0.1:{args.port}")
assert at == [("127.0.0.1", 40000), ("127.0.0.1", 40001)], at
print(json.dumps({"own": own, "sim": read(args.sim)[0]}), flush=True)
