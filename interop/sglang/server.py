"""Runs SGLang's own HTTP server and TokenizerManager, without a GPU, before a
scheduler that is played (sched.py): the sockets DIR/in and DIR/out.

    python server.py --sglang FOLDER --dir DIR --port PORT [--incremental] [--see ID] [--role ROLE]

What is SGLang's own here: /generate with its JSON and SSE, request states and their
merging, sampling parameters, aborts, sockets and codec. What is not: the resolution
of its flags, which asks a GPU, and the model's configuration, which are set here;
with --see the processor of a model with eyes, too, which has SGLang's own code read
each image, says its SHA-256 in a line, and puts --patches ids in the place of each ID.
With --role prefill the TokenizerManager starts SGLang's registry, at --registry.
"""

import argparse
import os
import sys
import types

p = argparse.ArgumentParser()
p.add_argument("--sglang", required=True)
p.add_argument("--dir", required=True)
p.add_argument("--port", type=int, required=True)
p.add_argument("--incremental", action="store_true")
p.add_argument("--see", type=int)
p.add_argument("--role", default="null")
p.add_argument("--registry", type=int, default=8998)
p.add_argument("--patches", type=int, default=5)
args = p.parse_args()

import launcher  # noqa: E402

launcher.of(args.sglang)

import asyncio  # noqa: E402
import base64  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402

import uvicorn  # noqa: E402
import uvloop  # noqa: E402

from sglang.srt.entrypoints import http_server  # noqa: E402
from sglang.srt.managers import io_struct, tokenizer_manager as tm  # noqa: E402
from sglang.srt.runtime_context import publish  # noqa: E402
from sglang.srt.server_args import PortArgs, ServerArgs  # noqa: E402
from sglang.srt.utils import common  # noqa: E402

VOCAB = 128000


class ModelConfig:
    def __getattr__(self, name):
        return None  # of models that this one is not

    @classmethod
    def from_server_args(cls, server_args, **kwargs):
        c = cls()
        c.__dict__.update(
            is_generation=True, context_len=100000, vocab_size=VOCAB, dtype="bfloat16", is_multimodal=False, is_multimodal_gen=False,
            image_token_id=None, hf_config=types.SimpleNamespace(architectures=["Sim"]), hf_text_config=None, num_attention_layers=1,
            is_audio_model=False, is_image_understandable_model=args.see is not None, is_audio_understandable_model=False, hf_eos_token_id=None,
            path="sim", get_default_sampling_params=dict)
        return c


class Eyes:
    prefer_tokenized_input = True

    async def process_mm_data_async(self, image_data, audio_data, input_text, **rest):
        seen = [hashlib.sha256(common.get_image_bytes(image)).hexdigest() for image in image_data]
        if list(input_text).count(args.see) != len(seen):
            raise ValueError(f"{list(input_text).count(args.see)} places for {len(seen)} images")
        print(json.dumps({"seen": seen}), flush=True)
        ids = [i for id in input_text for i in [id] * (args.patches if id == args.see else 1)]
        return types.SimpleNamespace(input_ids=ids, token_type_ids=None, mm_items=[])


async def main():
    server_args = ServerArgs(model_path="sim", served_model_name="sim", skip_tokenizer_init=True, device="cpu",
                             incremental_streaming_output=args.incremental, host="127.0.0.1", disaggregation_mode=args.role,
                             disaggregation_bootstrap_port=args.registry, disaggregation_transfer_backend="nixl")
    server_args._resolution_finished = True
    publish(server_args, role="tokenizer")
    tm.TokenizerManager.model_config_class = ModelConfig
    tm.wrap_shm_features = lambda obj: obj
    ports = PortArgs(
        tokenizer_ipc_name=f"ipc://{args.dir}/out", scheduler_input_ipc_name=f"ipc://{args.dir}/in", detokenizer_ipc_name=f"ipc://{args.dir}/d",
        nccl_port=0, rpc_ipc_name="", metrics_ipc_name="", tokenizer_worker_ipc_name=None, decoupled_spec_ipc_config=None,
        instance_id=f"weir{os.getpid()}")
    manager = tm.TokenizerManager(server_args, ports)
    manager.max_req_input_len = 99990
    manager.server_status = tm.ServerStatus.Up
    if args.see is not None:
        common.pybase64 = base64
        io_struct.has_valid_data = bool  # is of a module with models, which is not loaded
        manager.mm_processor = Eyes()
        create = manager._create_tokenized_object
        # What the processor makes of an image is the model's and not played: the scheduler gets the ids.
        manager._create_tokenized_object = lambda obj, text, ids, embeds, seen, types: create(obj, text, ids, embeds, None, types)
    http_server.set_global_state(http_server._GlobalState(tokenizer_manager=manager, template_manager=None, scheduler_info={}))
    server = uvicorn.Server(uvicorn.Config(http_server.app, host="127.0.0.1", port=args.port, log_level="warning", lifespan="off",
                                           loop="uvloop", backlog=8192, timeout_keep_alive=5))
    print("ready", flush=True)
    await server.serve()


if __name__ == "__main__":
    sys.setswitchinterval(0.005)
    uvloop.run(main())
