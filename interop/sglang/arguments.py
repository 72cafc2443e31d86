"""Holds the launcher (integrations/sglang) to what SGLang's arguments come to, in the
form that they had up to 0.5.18, where the record itself has it, and since, where
resolved_dict() has. It needs no SGLang."""

import importlib.util
import pathlib
import types

import msgspec

PATH = pathlib.Path(__file__).parent.parent.parent / "integrations" / "sglang" / "weir_sglang.py"
spec = importlib.util.spec_from_file_location("weir_sglang", PATH)
weir = importlib.util.module_from_spec(spec)
spec.loader.exec_module(weir)

HELD = dict(disaggregation_mode="null", enable_dp_attention=False, nnodes=1, skip_tokenizer_init=False, tokenizer_worker_num=1,
            detokenizer_worker_num=1, is_embedding=False, grammar_backend="xgrammar", dp_size=1)


class Resolved:
    """A record as of 0.5.19: the raw fields are what was given."""

    grammar_backend = None
    lora_paths = ["sql=/adapters/sql"]

    def __init__(self, **held):
        self.__dict__.update(dict.fromkeys(HELD))
        self.held = held

    def resolved_dict(self):
        return self.held


def refused(args):
    try:
        weir.refuse(args)
    except SystemExit as e:
        return str(e)
    return ""


old, new = types.SimpleNamespace(**HELD), Resolved(**HELD)
for args in (old, new):
    assert weir.arguments(args)["grammar_backend"] == "xgrammar", args
    assert refused(args) == "", refused(args)
for flag, value, words in (("enable_dp_attention", True, "--enable-dp-attention"), ("enable_pd_role_switch", True, "--enable-pd-role-switch"),
                           ("skip_tokenizer_init", True, "--skip-tokenizer-init")):
    changed = {**HELD, flag: value}
    for args in (types.SimpleNamespace(**changed), Resolved(**changed)):
        assert words in refused(args), (flag, refused(args))

ref = types.SimpleNamespace(lora_name="sql", lora_id="7f", lora_path="/adapters/sql")
record = msgspec.defstruct("LoRARef", ["lora_id", "lora_name", "lora_path"], frozen=True)("7f", "sql", "/adapters/sql")  # as of 0.5.19
assert weir.adapters([ref]) == weir.adapters([vars(ref)]) == weir.adapters([record]) == {"sql": "7f"}
assert weir.adapters(None) == weir.adapters(["sql=/adapters/sql"]) == {}

# Here SGLang's own defaults are said, of publisher (null), endpoint and topic.
assert weir.kv_events(None) is weir.kv_events("") is weir.kv_events("{}") is weir.kv_events('{"endpoint":"tcp://*:1"}') is None
assert weir.kv_events('{"publisher":"zmq"}') == {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "", "topic": ""}
assert weir.kv_events('{"publisher":"zmq","endpoint":"tcp://*:1","replay_endpoint":"tcp://*:2","topic":"t","hwm":7}') == {
    "publisher": "zmq", "endpoint": "tcp://*:1", "replay_endpoint": "tcp://*:2", "topic": "t"}
for mode, host, want in (("null", "10.0.0.1", None), ("decode", "10.0.0.1", None), ("prefill", "10.0.0.1", "10.0.0.1"), ("prefill", "0.0.0.0", None)):
    # Without SGLang nobody says what this machine is to others.
    assert weir.bootstrap_host({**HELD, "disaggregation_mode": mode, "host": host}) == want, (mode, host)
    assert refused(types.SimpleNamespace(**{**HELD, "disaggregation_mode": mode})) == ""
print("ok")
