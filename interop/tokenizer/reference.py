#!/usr/bin/env python3
"""The reference tokenizers library, for weir's tests to compare with.

    reference.py train OUT < SPEC    trains OUT/tokenizer.json for a grammar
    reference.py serve DIR           encodes and decodes what comes on stdin
    reference.py tiktoken DIR        the same with tiktoken, for DIR/spec.json
    reference.py tekken DIR          the same with mistral_common, for DIR/tekken.json
    reference.py tekkens             prints the tekken files of mistral_common
    reference.py paths               prints where Python's and Django's files are

SPEC is JSON: the components to train with and those to write, and the files to
train on. serve speaks frames: a request is an operation, a length and that
many bytes; an answer a length in units and the units. Operations: 'e' text to
ids, 'E' the same with special tokens added, 'd' ids to text, 'D' the same
without special tokens. All numbers are 32-bit little-endian. A text that the
reference refuses is answered with one id, REFUSED.
"""

import array
import json
import os
import pathlib
import struct
import sys
import sysconfig

REFUSED = 0xFFFFFFFF
sys.path.append(os.environ.get("WEIR_PUBLISHED", ""))  # mistral_common


def document(model, components):
    empty = {"BPE": {"type": "BPE", "vocab": {}, "merges": []}, "Unigram": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": empty[model]} | components


def train(out):
    from tokenizers import AddedToken, Tokenizer, pre_tokenizers, processors, trainers

    spec = json.load(sys.stdin)
    tokenizer = Tokenizer.from_str(json.dumps(document(spec["model"], spec["train"])))
    common = {"vocab_size": spec["size"], "show_progress": False, "special_tokens": spec["special"] or []}
    if spec["byte_alphabet"]:
        common["initial_alphabet"] = sorted(pre_tokenizers.ByteLevel.alphabet())
    if spec["model"] == "Unigram":
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **common)
    else:
        trainer = trainers.BpeTrainer(**common | {k: spec[k] for k in ("limit_alphabet", "max_token_length") if spec[k]})
    texts = [pathlib.Path(f).read_bytes().decode("utf-8", "replace") for f in spec["files"]]
    tokenizer.train_from_iterator((line for text in texts for line in text.splitlines(keepends=True)), trainer)
    trained = json.loads(tokenizer.to_str())
    trained["model"] |= spec["settings"] or {}
    tokenizer = Tokenizer.from_str(json.dumps(document(spec["model"], spec["serve"] | {"model": trained["model"]})))
    for token in spec["added"] or []:
        special = token.pop("special", False)
        add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
        add([AddedToken(special=special, **token)])
    if spec.get("bos"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{spec['bos']} $A {spec['bos']}", special_tokens=[(spec["bos"], tokenizer.token_to_id(spec["bos"]))])
    os.makedirs(out, exist_ok=True)
    tokenizer.save(os.path.join(out, "tokenizer.json"))


class Reference:
    def __init__(self, folder):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))

    def encode(self, text, special):
        return self.tokenizer.encode(text, add_special_tokens=special).ids

    def decode(self, ids, skip):
        return self.tokenizer.decode(ids, skip_special_tokens=skip)


class Tiktoken:
    def __init__(self, folder):
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe
        spec = json.loads(pathlib.Path(folder, "spec.json").read_text(encoding="utf-8"))
        self.special = spec["special"]
        self.encoding = tiktoken.Encoding(
            "weir", pat_str=spec["pattern"], special_tokens=self.special,
            mergeable_ranks=load_tiktoken_bpe(os.path.join(folder, spec["file"])))
        self.hidden = set(self.special.values())
        self.nfc = None
        if spec["nfc"]:
            from tokenizers import normalizers
            self.nfc = normalizers.NFC()

    def encode(self, text, special):
        if self.nfc:  # of the text between special tokens; none of them changes
            text = self.nfc.normalize_str(text)
        return self.encoding.encode(text, allowed_special="all", disallowed_special=())

    def decode(self, ids, skip):
        known = [i for i in ids if i < self.encoding.n_vocab and not (skip and i in self.hidden)]
        return b"".join(self.bytes(i) for i in known).decode("utf-8", "replace")

    def bytes(self, i):
        try:
            return self.encoding.decode_single_token_bytes(i)
        except KeyError:
            return b""


class Tekken:
    """Mistral's tokenizer, which finds no special tokens in text: they are cut
    out of it before. Bytes are joined across special tokens, as everywhere."""

    def __init__(self, folder):
        import re
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
        self.tokenizer = Tekkenizer.from_file(os.path.join(folder, "tekken.json"))
        self.policies = {True: SpecialTokenPolicy.IGNORE, False: SpecialTokenPolicy.KEEP}
        special = [self.tokenizer.id_to_piece(i) for i in range(self.tokenizer.num_special_tokens)]
        self.cut = re.compile("(" + "|".join(re.escape(s) for s in sorted(special, key=len, reverse=True)) + ")")

    def encode(self, text, special):
        ids = [self.tokenizer.bos_id] if special else []
        for i, part in enumerate(self.cut.split(text)):
            ids += [self.tokenizer.get_special_token(part)] if i % 2 else self.tokenizer.encode(part, bos=False, eos=False)
        return ids

    def decode(self, ids, skip):
        known = [i for i in ids if i < self.tokenizer.n_words]
        return b"".join(self.tokenizer.id_to_byte_piece(i, self.policies[skip]) for i in known).decode("utf-8", "replace")


def tekkens():
    import mistral_common
    for path in sorted((pathlib.Path(mistral_common.__file__).parent / "data").glob("tekken_*.json")):
        print(path)


def serve(reference):
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(5):
        operation, size = chr(head[0]), struct.unpack("<I", head[1:])[0]
        body = source.read(size)
        if operation in "eE":
            try:
                ids = reference.encode(body.decode(), operation == "E")
            except Exception as refusal:
                print(refusal, file=sys.stderr)
                ids = [REFUSED]
            answer, count = array.array("I", ids).tobytes(), len(ids)
        else:
            answer = reference.decode(array.array("I", body).tolist(), operation == "D").encode()
            count = len(answer)
        sink.write(struct.pack("<I", count) + answer)
        sink.flush()


def paths():
    import django
    print(sysconfig.get_paths()["stdlib"])
    print(pathlib.Path(django.__file__).parent)


if __name__ == "__main__":
    {"train": lambda: train(sys.argv[2]), "paths": paths, "serve": lambda: serve(Reference(sys.argv[2])),
     "tiktoken": lambda: serve(Tiktoken(sys.argv[2])), "tekken": lambda: serve(Tekken(sys.argv[2])), "tekkens": tekkens}[sys.argv[1]]()
