#!/usr/bin/env python3
"""Writes the small goldens that plain `go test` compares with.

    .venv/bin/python interop/tokenizer/golden.py

asks the reference about a list of awkward texts and writes its answers to
internal/tokenizer/testdata: ids of the embedded vocabulary, pieces of each
split pattern, normal forms.
"""

import json
import pathlib
import random
import re

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "internal/tokenizer/testdata"

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
    source = (ROOT / "internal/tokenizer/grammar.go").read_text(encoding="utf-8")
    named = dict(re.findall(r"^\t(pattern\w+)\s*= (`.*`|\".*\")$", source, re.M))
    spelled = {k: v[1:-1] if v[0] == "`" else json.loads(v) for k, v in named.items()}
    for grammar, constant in re.findall(r'^\t\t\{"([^"]+)", (pattern\w+),', source, re.M):
        yield grammar, spelled[constant]


def write(name, answers):
    lines = ",\n".join(json.dumps(a, ensure_ascii=True) for a in answers)
    (OUT / name).write_text("[\n" + lines + "\n]\n", encoding="ascii")


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


if __name__ == "__main__":
    main()
