"""Writes a small Llama of random weights, which real engines load and which says
nothing of sense: python model.py FOLDER [--gguf FILE].

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


def write_gguf(path):
    import gguf

    tokenizer = json.loads((SIM / "tokenizer.json").read_text())
    ends = json.loads((SIM / "generation_config.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    tokens, types = [None] * VOCAB, [gguf.TokenType.NORMAL] * VOCAB
    for text, i in vocab.items():
        tokens[i] = text
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED

    w = gguf.GGUFWriter(path, "llama")
    w.add_name("tiny")
    w.add_context_length(CONTEXT)
    w.add_embedding_length(HIDDEN)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FEED)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD)
    w.add_value_length(HEAD)
    w.add_rope_dimension_count(HEAD)
    w.add_rope_freq_base(THETA)
    w.add_layer_norm_rms_eps(EPSILON)
    w.add_vocab_size(VOCAB)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")  # the same split pattern
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    w.add_bos_token_id(ends["bos_token_id"])
    w.add_eos_token_id(ends["eos_token_id"][1])
    w.add_eot_token_id(ends["eos_token_id"][0])
    w.add_pad_token_id(ends["pad_token_id"])
    w.add_add_bos_token(True)
    w.add_chat_template((SIM / "chat_template.jinja").read_text())

    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for i in range(LAYERS):
        names |= {f"model.layers.{i}.{theirs}": f"blk.{i}.{ours}" for theirs, ours in parts.items()}
    for name, tensor in weights().items():
        if "q_proj" in name or "k_proj" in name:
            # llama.cpp turns pairs of neighbours, the folder's form halves.
            rows = tensor.reshape(-1, 2, HEAD // 2, HIDDEN).swapaxes(1, 2)
            tensor = rows.reshape(tensor.shape)
        w.add_tensor(names[name.removesuffix(".weight")] + ".weight", tensor)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--gguf", type=pathlib.Path, help="write it for llama.cpp, too")
    args = parser.parse_args()
    write_folder(args.folder)
    if args.gguf:
        write_gguf(args.gguf)
