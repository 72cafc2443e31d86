#!/usr/bin/env python3
"""Trains the vocabulary weir ships for its simulated engine.

    python3 -m venv .venv && .venv/bin/pip install -r tools/vocab/requirements.txt
    .venv/bin/python tools/vocab/train.py

writes models/weir-sim/tokenizer.json with Hugging Face's own tokenizers library
and fails if the result does not hold what the simulated engine needs of it.
"""

import argparse
import json
import pathlib
import re
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import corpus

SIZE = 32768
SPECIAL = 32
WORDS = 4096  # tokens " word" the simulated engine draws its text from

# Llama-3's split pattern, which is cl100k's with the newlines of contractions folded.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CONTROL = ["<|bos|>", "<|eos|>", "<|pad|>", "<|im_start|>", "<|im_end|>"]
# Not special: a client that skips special tokens still sees them, and the
# parsers of reasoning and tool calls find them in the text.
VISIBLE = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

# What stands for an image, and for audio, in a prompt.
MEDIA = ["<|image_pad|>", "<|audio_pad|>"]


def train(sources):
    tokenizer = Tokenizer(models.BPE(ignore_merges=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=16,
        show_progress=False,
    )

    def documents():
        for name, weight, generate in sources:
            count = size = 0
            for text in generate():
                count, size = count + 1, size + len(text.encode())
                for _ in range(weight):
                    yield text
            print(f"{name}: {count} documents, {size} bytes, weight {weight}", file=sys.stderr)

    tokenizer.train_from_iterator(documents(), trainer=trainer)
    add_control_tokens(tokenizer)
    return tokenizer


def add_control_tokens(tokenizer):
    reserved = SPECIAL - len(CONTROL) - len(VISIBLE) - len(MEDIA)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in VISIBLE])
    tokenizer.add_special_tokens(
        [AddedToken(f"<|reserved_{i}|>", normalized=False, special=True) for i in range(reserved)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in MEDIA])
    bos = tokenizer.token_to_id("<|bos|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="<|bos|>:0 $A:0", pair="<|bos|>:0 $A:0 <|bos|>:1 $B:1",
            special_tokens=[("<|bos|>", bos)]),
    ])


def check(tokenizer):
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    words = sum(1 for t in tokenizer.get_vocab() if re.fullmatch("Ġ[a-z]{2,}", t))
    print(f"{size} tokens, {words} of them a space and a lower-case word", file=sys.stderr)
    if size != SIZE or words < WORDS:
        sys.exit(f"want {SIZE} tokens, at least {WORDS} of them a space and a lower-case word")


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=root / "models/weir-sim/tokenizer.json")
    parser.add_argument("--cache", type=pathlib.Path, default=root / ".venv/cache")
    args = parser.parse_args()
    tokenizer = train(corpus.sources(args.cache))
    check(tokenizer)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    document = json.loads(tokenizer.to_str())
    args.out.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
