"""Starts SGLang's schedulers for weir, in the place of SGLang's server.

    python weir_sglang.py --weir DIR --model-path MODEL [SGLang's own flags]

Everything after --weir DIR is SGLang's (python -m sglang.launch_server --help).
weir serves DIR:

    weir serve --engine sglang-ipc=DIR --model NAME=MODEL

Either may be started first, and again. What this does: it starts what SGLang's
server starts, by the same functions, but no HTTP server, TokenizerManager or
detokenizer; it names weir's two sockets to the schedulers; and when they have
loaded the model it writes DIR/engine.json, which tells weir what the sockets do
not. Messages are msgpack (SGLANG_USE_PICKLE_IPC=0).

With --disaggregation-mode prefill it also starts the registry at which decode
engines find this one (--disaggregation-bootstrap-port), as SGLang's TokenizerManager
does.
"""

import inspect
import json
import os
import sys

os.environ["SGLANG_USE_PICKLE_IPC"] = "0"  # read when SGLang is imported, here and in its children

FORM = 1


def structures():
    """The structures of the wire as this release has them: the fields of each in
    their order, and a sample of those that weir writes."""
    import base64
    from array import array

    from sglang.srt.managers import io_struct as io

    sampling = io.SamplingParams(max_new_tokens=1)
    sampling.normalize(None)
    request = io.TokenizedGenerateReqInput(
        rid="", input_text=None, input_ids=array("q"), input_embeds=None, mm_inputs=None, token_type_ids=None,
        sampling_params=sampling, return_logprob=False, logprob_start_len=-1, top_logprobs_num=0, token_ids_logprob=None,
        stream=True)
    samples = [request, io.AbortReq(rid=""), io.ConfigureLoggingReq(rid=""), io.GetInternalStateReq()]
    wire = {type(s).__name__: {"fields": list(s.__struct_fields__), "sample": base64.b64encode(io.msgpack_encode(s)).decode()}
            for s in samples}
    for known in (io.SamplingParams, io.BatchTokenIDOutput):
        wire[known.__name__] = {"fields": list(known.__struct_fields__)}
    return wire


# What of SGLang's arguments decides which fields of a request its schedulers act on.
SAID = ("skip_tokenizer_init", "grammar_backend", "speculative_algorithm", "enable_deterministic_inference", "allow_auto_truncate",
        "sampling_defaults", "preferred_sampling_params", "reasoning_parser", "disaggregation_mode", "disaggregation_bootstrap_port",
        "disaggregation_transfer_backend", "disable_radix_cache", "disaggregation_decode_enable_radix_cache")


def arguments(server_args):
    """SGLang's arguments as they hold: from 0.5.19 on the record has what was given,
    and what it came to stands apart."""
    resolved = getattr(server_args, "resolved_dict", None)
    return resolved() if resolved else dict(vars(server_args))


def adapters(refs):
    """The ids of LoRA adapters by name. Releases have them as dicts or as records, which have
    attributes and no __dict__."""
    def of(ref, name):
        return ref.get(name) if isinstance(ref, dict) else getattr(ref, name, None)

    return {of(ref, "lora_name"): of(ref, "lora_id") for ref in refs or [] if of(ref, "lora_id")}


def kv_events(given):
    """Where rank 0 publishes what its KV cache holds, by --kv-events-config; None: nowhere."""
    config = json.loads(given) if given else {}
    if config.get("publisher", "null") == "null":
        return None
    return {"publisher": config["publisher"], "endpoint": config.get("endpoint", "tcp://*:5557"),
            "replay_endpoint": config.get("replay_endpoint") or "", "topic": config.get("topic", "")}


def bootstrap_host(held):
    """Where decode engines reach the registry; None: there is none, or it is not known,
    and weir is told (bootstrap-host=)."""
    if held["disaggregation_mode"] != "prefill":
        return None
    if held.get("host") not in (None, "", "0.0.0.0", "::"):
        return held["host"]
    try:
        from sglang.srt.utils.network import get_local_ip_auto
    except ImportError:
        return None
    return get_local_ip_auto()  # which the schedulers register for themselves


def loads(instance):
    """The file in which the schedulers say how busy they are; None: this release has none."""
    try:
        from sglang.srt.managers.load_snapshot import shm_path_for
    except ImportError:
        return None
    if os.environ.get("SGLANG_LOAD_SNAPSHOT_USE_ZMQ", "").lower() in ("1", "true", "yes", "y"):
        return None  # they send it elsewhere
    return shm_path_for(instance)


def word(server_args, model_config, max_req_input_len, instance):
    """What weir is told of the schedulers."""
    from sglang.version import __version__

    held = arguments(server_args)
    return {
        "form": FORM, "sglang": __version__, "instance": instance, "pid": os.getpid(),
        "served_model_name": held.get("served_model_name") or held["model_path"],
        "context_length": model_config.context_len, "max_req_input_len": max_req_input_len,
        "vocab_size": model_config.vocab_size, "dp_size": held["dp_size"],
        "enable_priority_scheduling": bool(held.get("enable_priority_scheduling")),
        "bootstrap_host": bootstrap_host(held),
        "kv_events": kv_events(held.get("kv_events_config")), "loads": loads(instance),
        "lora": adapters(held.get("lora_paths")), "started": {name: held[name] for name in SAID if name in held},
        "wire": structures(),
    }


def refuse(server_args):
    """What this way of serving does not have."""
    held = arguments(server_args)
    for wrong, why in (
        (held.get("enable_pd_role_switch"), "--enable-pd-role-switch: weir is told the role once"),
        (held["enable_dp_attention"], "--enable-dp-attention: its sockets are TCP"),
        (held["nnodes"] > 1, "several nodes"),
        (held["skip_tokenizer_init"], "--skip-tokenizer-init: the schedulers' tokenizer serves min_tokens and grammars"),
        (held["tokenizer_worker_num"] > 1, "--tokenizer-worker-num: there is no TokenizerManager"),
        (held.get("detokenizer_worker_num", 1) > 1, "--detokenizer-worker-num: there is no detokenizer"),
        (held["is_embedding"], "--is-embedding"),
    ):
        if wrong:
            sys.exit(f"weir_sglang: not with {why}")


class NoTokenizerManager:
    """Stands where SGLang's launcher keeps what it learns from the schedulers."""

    max_req_input_len = None

    def __init__(self, registry):
        self.registry = registry  # which serves as long as it is held

    def set_startup_time(self, value):
        pass


def registry(server_args):
    """Starts what halves of requests meet by, if the engine is a prefill engine."""
    from sglang.srt.managers.disagg_service import start_disagg_service

    if inspect.signature(start_disagg_service).parameters:  # before 0.5.19
        return start_disagg_service(server_args)
    return start_disagg_service()


def no_tokenizer_manager(server_args, port_args):
    return NoTokenizerManager(registry(server_args)), None


def no_detokenizer(server_args, port_args):
    """Runs in a process of its own, which ends at once: weir reads what would have
    gone to it."""


def write(directory, content):
    temporary = os.path.join(directory, "engine.json.new")
    with open(temporary, "w") as f:
        json.dump(content, f)
    os.replace(temporary, os.path.join(directory, "engine.json"))


def launch(directory, server_args):
    """Starts the schedulers and waits until they have loaded the model. It returns
    what waits for their end."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.managers.scheduler import run_scheduler_process
    from sglang.srt.server_args import PortArgs

    port_args = PortArgs.init_new(server_args)
    port_args.scheduler_input_ipc_name = "ipc://" + os.path.join(directory, "in")
    # The detokenizer's share comes over the second of weir's sockets too.
    port_args.tokenizer_ipc_name = port_args.detokenizer_ipc_name = "ipc://" + os.path.join(directory, "out")
    manager, _, port_args, started, *_ = Engine._launch_subprocesses(
        server_args=server_args, init_tokenizer_manager_func=no_tokenizer_manager,
        run_scheduler_process_func=run_scheduler_process, run_detokenizer_process_func=no_detokenizer, port_args=port_args)
    model_config = ModelConfig.from_server_args(server_args)
    write(directory, word(server_args, model_config, manager.max_req_input_len, port_args.instance_id))
    return started.block_until_scheduler_exits


def main(argv):
    if len(argv) < 2 or argv[0] != "--weir":
        sys.exit(__doc__)
    directory = os.path.abspath(argv[1])
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    said = os.path.join(directory, "engine.json")
    if os.path.exists(said):
        os.remove(said)  # of an engine that is not this one

    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    server_args = prepare_server_args(argv[2:])
    if hasattr(server_args, "resolve_once"):  # before 0.5.19 it resolves itself
        server_args.resolve_once()
    refuse(server_args)
    try:
        launch(directory, server_args)()
    finally:
        if os.path.exists(said):
            os.remove(said)
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
