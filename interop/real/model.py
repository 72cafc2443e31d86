"""Writes a small Llama of random weights, which real engines load and which says
nothing of sense: python model.py FOLDER.

Its tokenizer, chat template and end ids are those of models/weir-sim, so weir and
the engine read the same folder. The weights come of a fixed seed; they are scaled
so that an answer wanders through the vocabulary instead of repeating one token.
"""

import argparse
import json
import pathlib
import shutil

import numpy as np
from safetensors.numpy import save_file

SIM = pathlib.Path(__file__).resolve().parents[2] / "models" / "weir-sim"

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, FEED, CONTEXT = 32768, 64, 2, 2, 1, 32, 128, 4096
THETA, EPSILON = 10000.0, 1e-5

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FEED,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": EPSILON,
    "rope_theta": THETA,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "dtype": "float32",
    "torch_dtype": "float32",
}


def weights():
    rng = np.random.default_rng(1)

    def matrix(out, into):
        return (rng.standard_normal((out, into)) * 1.5 / np.sqrt(into)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": rng.standard_normal((VOCAB, HIDDEN)).astype(np.float32)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name, out, into in [
            ("self_attn.q_proj", HEADS * HEAD, HIDDEN),
            ("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN),
            ("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HEADS * HEAD),
            ("mlp.gate_proj", FEED, HIDDEN),
            ("mlp.up_proj", FEED, HIDDEN),
            ("mlp.down_proj", HIDDEN, FEED),
        ]:
            tensors[f"{layer}{name}.weight"] = matrix(out, into)
        for name in ["input_layernorm", "post_attention_layernorm"]:
            tensors[f"{layer}{name}.weight"] = np.ones(HIDDEN, np.float32)
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    tensors["lm_head.weight"] = matrix(VOCAB, HIDDEN)
    return tensors


def write_folder(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]:
        shutil.copyfile(SIM / name, folder / name)
    ends = json.loads((SIM / "generation_config.json").read_text())
    (folder / "config.json").write_text(json.dumps(CONFIG | ends, indent=2) + "\n")
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    write_folder(parser.parse_args().folder)
