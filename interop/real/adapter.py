"""Writes a LoRA adapter of random weights, in PEFT's form, for the Llama of model.py:
python adapter.py FOLDER SEED. It is strong enough to change what the model says.
"""

import argparse
import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

from model import FEED, HEAD, HEADS, HIDDEN, KV_HEADS, LAYERS

RANK = 8
MODULES = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    "mlp.up_proj": (FEED, HIDDEN),
    "mlp.down_proj": (HIDDEN, FEED),
    "mlp.gate_proj": (FEED, HIDDEN),
}

CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "",
    "r": RANK,
    "lora_alpha": 2 * RANK,
    "lora_dropout": 0.0,
    "bias": "none",
    "target_modules": sorted(name.split(".")[1] for name in MODULES),
    "inference_mode": True,
}


def write_folder(folder, seed):
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        for name, (out, into) in MODULES.items():
            key = f"base_model.model.model.layers.{layer}.{name}.lora_"
            tensors[key + "A.weight"] = (rng.standard_normal((RANK, into)) / np.sqrt(into)).astype(np.float32)
            tensors[key + "B.weight"] = (rng.standard_normal((out, RANK)) / np.sqrt(RANK)).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("seed", type=int)
    args = parser.parse_args()
    write_folder(args.folder, args.seed)
