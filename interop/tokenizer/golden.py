#!/usr/bin/env python3
"""Writes the small goldens that plain `go test` compares with.

    .venv/bin/python interop/tokenizer/golden.py

asks the reference about a list of awkward texts and writes its answers to
internal/model/tokenizer/testdata: ids of the embedded vocabulary, pieces of each
split pattern, normal forms, and two small vocabularies with what each component
makes of the texts.
"""

import json
import pathlib
import random
import re

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "internal/model/tokenizer/testdata"

TEXTS = [
    "", " ", "  ", "\n", " \n", "\n ", "a", " a", "  a", "a ", "a  ", "\r\n\r\n", " \r\n \n x", "\t\tx", "a\n\n\n  b",
    "Hello, world! How's it going?", "It'S we'LL I'd they'Re don'T 'tis 'Tis 'll 'Ve O'Reilly's", "'ſ it'ſa 'ſt 'K",
    "x = foo_bar(12345, 3.14159); // 0xdeadbeef", "if err != nil {\n\t\treturn fmt.Errorf(\"op: %w\", err)\n\t}\n",
    "数据库连接失败,请检查。", "日本語のテキストとカタカナ、漢字。", "한국어 텍스트입니다 가각", "مرحبا بالعالم ١٢٣٤", "नमस्ते दुनिया १२३४५", "สวัสดีชาวโลก",
    "Привет, мир! Ёж", "Ünïcödé naïve café cafe\u0301 e\u0323\u0302", "ǅungla ʰaʰ İstanbul ﬁn ß ẞ", "HTTPServer getHTTPResponse iPhone XMLÉté",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪🇯🇵 ❤️ 1️⃣", "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u200bh\ufeffi\u1680j", "\x00\x01\x1b[0m\x7f", "½ ² Ⅷ ٣ ५ 一 10²³ 1,234,567.89",
    "!!!???...---===", "!/\n//\r\n /x", "--\u0301a \u0301 \u0301\u0301 x\u0301", "$100 €5 £3 ¥7 +=<>^`|~", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " " * 70 + "x" + " " * 33, "\n" * 40 + "x", "ab" * 100, "1" * 50, "\u0301" * 40, "\ufffd\ufffd x\ufffd", "\U0010ffff\U000e0001\ue000",
    "<|bos|>hi<|im_end|>\n<|im_start|>user\n<think>hm</think><|im_", "<|<|bos|>|>", "\u1100\u1161\u11a8\uac00\u11a8\uac01\u11a8", "\u212b\u2126\u0344\u0f73\u0958",
    "a\u0315\u0300\u05ae\u0300\u0315b q\u0307\u0323", "𝒳𝟙 𐐀𐐨 𓀀 ꜱ",
]


def patterns():
    """The patterns as the Go source spells them."""
    source = (ROOT / "internal/model/tokenizer/grammar.go").read_text(encoding="utf-8")
    named = dict(re.findall(r"^\t(pattern\w+)\s*= (`.*`|\".*\")$", source, re.M))
    spelled = {k: v[1:-1] if v[0] == "`" else json.loads(v) for k, v in named.items()}
    for grammar, constant in re.findall(r'^\t\t\{"([^"]+)", (pattern\w+),', source, re.M):
        yield grammar, spelled[constant]


def write(name, answers):
    lines = ",\n".join(json.dumps(a, ensure_ascii=True) for a in answers)
    (OUT / name).write_text("[\n" + lines + "\n]\n", encoding="ascii")


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}


def sequence(member, *parts):
    return {"type": "Sequence", member: list(parts)}


def replace(kind, pattern, content):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def splitting(kind, pattern, behavior, invert=False):
    return {"pre_tokenizer": {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}}


def documents():
    """The components that small vocabularies are tried with: name, model, members, settings of the model."""
    signs = replace("String", " ", "\u2581")
    prepend = {"type": "Prepend", "prepend": "\u2581"}
    fallback = [replace("String", "\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    llama = sequence("decoders", *fallback, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    gemma = sequence("decoders", *fallback)
    yield "llama2", "bpe", {"normalizer": sequence("normalizers", prepend, signs), "decoder": llama}, {}
    yield "mistral", "bpe", {"pre_tokenizer": metaspace("first", False), "decoder": llama}, {}
    yield "gemma", "bpe", {"normalizer": signs, **splitting("String", " ", "MergedWithPrevious"), "decoder": gemma}, {}
    yield "no decoder", "bpe", {"pre_tokenizer": metaspace("always", True)}, {}
    yield "unknown fused", "bpe", {"pre_tokenizer": metaspace("never", False), "decoder": metaspace("never", True)}, {"byte_fallback": False}
    yield "unknown apart", "bpe", {"pre_tokenizer": metaspace("always", False), "decoder": metaspace("always", True)}, {"byte_fallback": False, "fuse_unk": False}
    yield "unknown dropped", "bpe", {"pre_tokenizer": metaspace("first", True), "decoder": metaspace("first", True)}, {"byte_fallback": False, "unk_token": None}
    yield "ignore merges", "bpe", {"pre_tokenizer": metaspace("always", True), "decoder": llama}, {"ignore_merges": True}
    yield "unigram", "unigram", {"pre_tokenizer": metaspace("always", True), "decoder": metaspace("always", True)}, {"byte_fallback": False}
    yield "unigram with bytes", "unigram", {"normalizer": sequence("normalizers", prepend, signs), "decoder": llama}, {}
    for kind in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"]:
        yield kind, "bpe", {"normalizer": {"type": kind}, "decoder": gemma}, {}
    yield "Strip", "bpe", {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}, "decoder": gemma}, {}
    yield "Replace", "bpe", {"normalizer": replace("Regex", r"\s+|(?<=\d),", "_"), "decoder": gemma}, {}
    for kind, members in [("Whitespace", {}), ("WhitespaceSplit", {}), ("Digits", {"individual_digits": True}),
                          ("Punctuation", {"behavior": "Contiguous"}), ("CharDelimiterSplit", {"delimiter": "e"})]:
        yield kind, "bpe", {"pre_tokenizer": {"type": kind, **members}, "decoder": gemma}, {}
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        yield behavior, "bpe", {**splitting("Regex", r"\p{Lu}|\s|\d{2}", behavior), "decoder": gemma}, {}
        yield behavior + ", inverted", "bpe", {**splitting("String", "a", behavior, True), "decoder": gemma}, {}


def small_models(texts):
    """A BPE and a Unigram vocabulary of some hundred tokens."""
    empty = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
             "pre_tokenizer": metaspace("always", True), "post_processor": None, "decoder": None}
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    models = {"bpe": {"type": "BPE", "vocab": {}, "merges": []}, "unigram": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}}
    trainer = {"bpe": trainers.BpeTrainer(vocab_size=700, limit_alphabet=150, special_tokens=special, show_progress=False),
               "unigram": trainers.UnigramTrainer(vocab_size=600, unk_token="<unk>", special_tokens=special, show_progress=False)}
    for name, model in models.items():
        tokenizer = Tokenizer.from_str(json.dumps({**empty, "model": model}))
        tokenizer.train_from_iterator(texts * 4, trainer[name])
        trained = json.loads(tokenizer.to_str())["model"]
        trained["byte_fallback"] = True
        if name == "bpe":
            trained |= {"unk_token": "<unk>", "fuse_unk": True}
        models[name] = trained
    return empty, models


def components(texts, rng):
    empty, models = small_models(texts)
    added = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": n, "special": s}
             for i, c, n, s in [(0, "<unk>", False, True), (1, "<s>", False, True), (2, "</s>", True, True)]]
    for name, model in models.items():
        (OUT / f"small-{name}.json").write_text(json.dumps(model, ensure_ascii=True, separators=(",", ":")) + "\n", encoding="ascii")
    tried = [t for t in texts if t][:90:2] + ["<s>Hello <s> world</s> x</s>", "a </s>"]
    for name, model, members, settings in documents():
        document = {**empty, "pre_tokenizer": None, "added_tokens": added, **members, "model": models[model] | settings}
        tokenizer = Tokenizer.from_str(json.dumps(document))
        size = tokenizer.get_vocab_size()
        ids = [[rng.choice([rng.randrange(size), 3 + rng.randrange(256), rng.randrange(3)]) for _ in range(rng.randint(1, 10))] for _ in range(20)]
        yield {"name": name, "model": model, "members": members, "settings": settings,
               "encoded": [{"text": t, "ids": tokenizer.encode(t, add_special_tokens=False).ids} for t in tried],
               "decoded": [{"ids": i, "text": tokenizer.decode(i, skip_special_tokens=False), "skipped": tokenizer.decode(i)} for i in ids]}


def main():
    rng = random.Random(4)
    letters = "aB'sſ 1٣\n\r\t.,/中ぁé\u0301ʰǅ\u00a0\u200b-💡<_$가"
    texts = TEXTS + ["".join(rng.choices(letters, k=rng.randint(1, 30))) for _ in range(60)]
    OUT.mkdir(exist_ok=True)
    tokenizer = Tokenizer.from_file(str(ROOT / "models/weir-sim/tokenizer.json"))
    write("weir-sim.json", [{"text": t, "ids": tokenizer.encode(t, add_special_tokens=False).ids} for t in texts])
    pieces = []
    for grammar, pattern in patterns():
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        pieces += [{"grammar": grammar, "text": t, "pieces": [p for p, _ in split.pre_tokenize_str(t)]} for t in texts if t]
    write("pieces.json", pieces)
    nfc = normalizers.NFC()
    write("nfc.json", [{"text": t, "nfc": nfc.normalize_str(t)} for t in texts if nfc.normalize_str(t) != t])
    decoded = []
    for _ in range(60):
        ids = [rng.choice([rng.randrange(300), rng.randrange(32770)]) for _ in range(rng.randint(1, 12))]
        decoded.append({"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False)})
    write("decode.json", decoded)
    write("components.json", components(texts, rng))


if __name__ == "__main__":
    main()
