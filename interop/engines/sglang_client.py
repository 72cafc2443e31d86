"""Checks of the sglang wire through SGLang's own client, its frontend language.

Each check prints one line of JSON; the last line says how many there are.
"""

import json
import sys
import traceback

import sglang as sgl

URL = sys.argv[1]
# A gateway of weir's says no to what concerns one engine, or the prompt's
# probabilities.
GATEWAY = sys.argv[2:] == ["gateway"]
checks = []


def check(f):
    checks.append(f)
    return f


@sgl.function
def story(s):
    s += "Once upon"
    s += sgl.gen("middle", max_tokens=8, ignore_eos=True)
    s += " then"
    s += sgl.gen("end", max_tokens=5, ignore_eos=True)


@check
def model_info(_):
    backend = sgl.RuntimeEndpoint(URL)
    assert backend.get_model_name() == "weir-sim", backend.get_model_name()
    assert backend.model_info["is_generation"] is True


@check
def server_info(backend):
    info = backend.get_server_info()
    assert info["served_model_name"] == "weir-sim", info
    assert len(info["internal_states"]) == 1, info


@check
def generate(_):
    state = story.run(temperature=0)
    meta = state.get_meta_info("middle")
    assert len(state["middle"].split()) == 8, state["middle"]
    assert meta["completion_tokens"] == 8 and meta["finish_reason"] == {"type": "length", "length": 8}, meta
    # What follows is a prompt with what was generated in it.
    assert state.get_meta_info("end")["prompt_tokens"] > 8


@check
def the_same_every_time(_):
    assert len({story.run()["middle"] for _ in range(3)}) == 1


@check
def stream(_):
    pieces = list(story.run(stream=True).text_iter(var_name="middle"))
    assert "".join(pieces) == story.run()["middle"], pieces
    assert 1 < len(pieces) <= 8, pieces


@check
def batch(_):
    states = story.run_batch([{} for _ in range(8)], num_threads=8)
    assert len({s["end"] for s in states}) == 1


@check
def stop_string(_):
    whole = story.run()["middle"]
    word = whole.split()[4]

    @sgl.function
    def cut(s):
        s += "Once upon"
        s += sgl.gen("middle", max_tokens=8, ignore_eos=True, stop=word)

    state = cut.run()
    assert state["middle"] == whole[: whole.index(word)], (state["middle"], whole)
    assert state.get_meta_info("middle")["finish_reason"]["matched"] == word


def refused(f):
    """What a gateway refuses must fail there, and pass elsewhere."""

    def either(backend):
        if not GATEWAY:
            return f(backend)
        try:
            f(backend)
        except Exception:
            return
        raise AssertionError("not refused")

    either.__name__ = f.__name__
    return either


@check
@refused
def choices(_):
    # Decided by the log probabilities of the prompt.
    @sgl.function
    def pick(s):
        s += "Pick "
        s += sgl.select("c", choices=["red", "green", "blue"])

    state = pick.run()
    scores = state.get_meta_info("c")["normalized_prompt_logprobs"]
    assert len(scores) == 3 and state["c"] == ["red", "green", "blue"][scores.index(max(scores))], scores


@check
@refused
def logprobs(_):
    @sgl.function
    def scored(s):
        s += "Once upon"
        s += sgl.gen("x", max_tokens=5, ignore_eos=True, return_logprob=True, logprob_start_len=0, top_logprobs_num=3,
                     return_text_in_logprobs=True)

    meta = scored.run().get_meta_info("x")
    assert len(meta["output_token_logprobs"]) == 5 and len(meta["output_top_logprobs"][0]) == 3, meta
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"], meta
    assert all(top[0] == entry for top, entry in zip(meta["output_top_logprobs"], meta["output_token_logprobs"]))


@check
def output_logprobs(_):
    @sgl.function
    def scored(s):
        s += "Once upon"
        s += sgl.gen("x", max_tokens=5, ignore_eos=True, return_logprob=True, logprob_start_len=-1, top_logprobs_num=3,
                     return_text_in_logprobs=True)

    state = scored.run()
    meta = state.get_meta_info("x")
    assert len(meta["output_token_logprobs"]) == 5 and all(len(top) == 3 for top in meta["output_top_logprobs"]), meta
    assert "".join(entry[2] for entry in meta["output_token_logprobs"]) == state["x"], meta


@check
def json_schema(_):
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}

    @sgl.function
    def document(s):
        s += "A person: "
        s += sgl.gen("x", max_tokens=500, json_schema=json.dumps(schema))

    person = json.loads(document.run()["x"])
    assert isinstance(person["name"], str) and isinstance(person["age"], int), person


@check
@refused
def flush_cache(backend):
    backend.flush_cache()


def main():
    backend = sgl.RuntimeEndpoint(URL)
    sgl.set_default_backend(backend)
    for f in checks:
        ok, detail = True, ""
        try:
            f(backend)
        except Exception:
            ok, detail = False, traceback.format_exc()
        print(json.dumps({"check": f.__name__, "ok": ok, "detail": detail}), flush=True)
    print(json.dumps({"checks": len(checks)}))


main()
