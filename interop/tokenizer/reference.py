#!/usr/bin/env python3
"""The reference tokenizers library, for weir's tests to compare with.

    reference.py train OUT < SPEC    trains OUT/tokenizer.json for a grammar
    reference.py serve DIR           encodes and decodes what comes on stdin

SPEC is JSON: what to put into the tokenizer, and the files to train on. serve
speaks frames: a request is an operation, a length and that many bytes; an
answer a length in units and the units. Operations: 'e' text to ids, 'E' the
same with special tokens added, 'd' ids to text, 'D' the same without special
tokens, 'n' text to its NFC. All numbers are 32-bit little-endian.
"""

import array
import json
import os
import pathlib
import struct
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers


def train(out):
    spec = json.load(sys.stdin)
    tokenizer = Tokenizer(models.BPE(ignore_merges=spec.get("ignore_merges", False)))
    if spec.get("nfc"):
        tokenizer.normalizer = normalizers.NFC()
    split = [pre_tokenizers.Split(Regex(p), behavior="isolated", invert=False) for p in spec["patterns"]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split + [byte_level]) if split else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec["size"], show_progress=False, max_token_length=spec.get("max_token_length"),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    texts = [pathlib.Path(f).read_bytes().decode("utf-8", "replace") for f in spec["files"]]
    tokenizer.train_from_iterator(texts, trainer)
    for token in spec["added"]:
        special = token.pop("special", False)
        add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
        add([AddedToken(special=special, **token)])
    if spec.get("bos"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{spec['bos']} $A {spec['bos']}", special_tokens=[(spec["bos"], tokenizer.token_to_id(spec["bos"]))])
    os.makedirs(out, exist_ok=True)
    tokenizer.save(os.path.join(out, "tokenizer.json"))


def serve(folder):
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    nfc = normalizers.NFC()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(5):
        operation, size = chr(head[0]), struct.unpack("<I", head[1:])[0]
        body = source.read(size)
        if operation in "eE":
            ids = tokenizer.encode(body.decode(), add_special_tokens=operation == "E").ids
            answer, count = array.array("I", ids).tobytes(), len(ids)
        elif operation in "dD":
            ids = array.array("I", body).tolist()
            answer = tokenizer.decode(ids, skip_special_tokens=operation == "D").encode()
            count = len(answer)
        else:
            answer = nfc.normalize_str(body.decode()).encode()
            count = len(answer)
        sink.write(struct.pack("<I", count) + answer)
        sink.flush()


if __name__ == "__main__":
    {"train": train, "serve": serve}[sys.argv[1]](sys.argv[2])
