"""Writes internal/engine/sglangipc/testdata/golden.json: what releases of SGLang say
of the wire's structures, and encode of the same messages, by their own code.

    python golden.py FOLDER... > ../../internal/engine/sglangipc/testdata/golden.json

Each FOLDER holds the unpacked wheel of a release. Each is read by a process of its own.
"""

import base64
import json
import pathlib
import subprocess
import sys


def release(root):
    import launcher  # sets the codec, and puts the release in the place of sglang

    weir = launcher.of(root)
    from array import array

    from sglang.srt.managers import io_struct as io
    from sglang.version import __version__

    def ids(*values):
        return array("q", values)

    def step(**columns):
        n = len(columns["rids"])
        for name in io.BatchTokenIDOutput.__struct_fields__:
            if name in columns:
                continue
            columns[name] = None
            if name in ("decoded_texts", "read_offsets", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim",
                        "reasoning_tokens", "retraction_counts", "image_tokens", "audio_tokens", "video_tokens"):
                columns[name] = {"decoded_texts": ["text"], "read_offsets": [5]}.get(name, [0]) * n
            elif name == "decode_ids":
                columns[name] = [ids(1, 2, 3, 4, 5, 6)] * n
            elif name.startswith("spec_"):
                columns[name] = []
            elif name == "time_stats":
                columns[name] = io.wrap_as_pickle(["stats"] * n)
            elif name == "cached_tokens_details":
                columns[name] = [{"device": 4, "host": 0}] * n
            elif name == "dp_ranks":
                columns[name] = [None] * n
        return io.BatchTokenIDOutput(http_worker_ipcs=[None] * n, **{k: v for k, v in columns.items() if k != "http_worker_ipcs"})

    messages = {
        "step": step(
            rids=["running-000000", "stopped-000000", "full-000000000", "aborted-000000", "overflow-00000", "several-000000"],
            finished_reasons=[None, {"type": "stop", "matched": 70000}, {"type": "length", "length": 300},
                              {"type": "abort", "message": "why", "status_code": 503, "err_type": None},
                              {"type": "stop", "matched": "NaN happened"}, {"type": "stop", "matched": [7, 8]}],
            output_ids=[ids(5), ids(200, 70000), ids(*range(40)), ids(), ids(1), ids(7, 8)],
            prompt_tokens=[9, 200, 70000, 1, 2, 3], completion_tokens=[1, 2, 300, 0, 1, 2], cached_tokens=[4, 0, 300, 0, 0, 0],
            output_token_logprobs_val=[[], [-0.25, -0.5], [], [], [], []], output_token_logprobs_idx=[[], [200, 70000], [], [], [], []],
            output_top_logprobs_val=[[], [[-0.25, -1.5], [-0.125, float("-inf")]], [], [], [], []],
            output_top_logprobs_idx=[[], [[200, 1], [3, 70000]], [], [], [], []]),
        "idle": step(rids=[], finished_reasons=[], output_ids=[], prompt_tokens=[], completion_tokens=[], cached_tokens=[]),
        "echo": io.AbortReq(rid="waiting-000000", finished_reason={"type": "abort", "status_code": 503, "message": "The request queue is full."}),
        "plain_echo": io.AbortReq(rid="waiting-000000"),
        "answer": io.ConfigureLoggingReq(rid="weir-fence-1f"),
        "configured": io.ConfigureLoggingReq(log_level="info"),
        "state": io.GetInternalStateReqOutput(internal_state={
            "model_path": "m", "nested": {"a": [1, {"b": 2.5}]}, "effective_max_running_requests_per_dp": 48, "last": None}),
        "health": io.HealthCheckOutput(),
        "frozen": io.FreezeGCReq(),
    }
    # A request as SGLang's front end would make it of what a client asked for.
    sampling = io.SamplingParams(
        max_new_tokens=100, min_new_tokens=3, stop_token_ids={70000}, ignore_eos=True, temperature=0.0, top_p=0.5, min_p=0.25,
        presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.5, logit_bias={"7": -1.5}, sampling_seed=12345678901,
        json_schema='{"type":"object"}')
    sampling.normalize(object())
    sampling.verify(128000)
    messages["request"] = request = io.TokenizedGenerateReqInput(
        rid="419f8673ad28e099000000000001", input_text=None, input_ids=ids(1, 200, 70000), input_embeds=None, mm_inputs=None,
        token_type_ids=None, sampling_params=sampling, return_logprob=True, logprob_start_len=-1, top_logprobs_num=2,
        token_ids_logprob=None, stream=True, lora_id="adapter", priority=-7)
    messages["abort"] = io.AbortReq(rid=request.rid)
    messages["abort_all"] = io.AbortReq(rid="", abort_all=True)

    def encode(m):
        return base64.b64encode(io.msgpack_encode(m)).decode()

    return {"word": {
        "form": weir.FORM, "sglang": __version__, "instance": "one", "pid": 1, "served_model_name": "served", "context_length": 4096,
        "max_req_input_len": 4085, "vocab_size": 128000, "dp_size": 1, "enable_priority_scheduling": True,
        "lora": {"lora": "adapter"}, "wire": weir.structures(),
    }, "messages": {name: encode(m) for name, m in messages.items()}}


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        json.dump(release(sys.argv[2]), sys.stdout)
        sys.exit()
    golden = {}
    for root in sys.argv[1:]:
        out = subprocess.run([sys.executable, __file__, "--one", root], check=True, stdout=subprocess.PIPE, cwd=pathlib.Path(__file__).parent)
        one = json.loads(out.stdout)
        golden[one["word"]["sglang"]] = one
    json.dump(golden, sys.stdout, indent=1)
    print()
