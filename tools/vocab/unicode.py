#!/usr/bin/env python3
"""Reads the reference tokenizer's own Unicode tables off it and writes them as Go.

    .venv/bin/python tools/vocab/unicode.py

writes internal/model/tokenizer/unicode_tables.go. The reference's split engine, its
word test and its normalizer each follow some version of Unicode, none of them
Go's; asking the reference about every code point is the one way to be sure.
"""

import pathlib
import struct
import subprocess

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CATEGORIES = ["Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No",
              "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So",
              "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"]
SPACE, WORD, UNSTABLE = 1 << 5, 1 << 6, 1 << 7
# Of the second table; the low bits are the grapheme class.
GRAPHEMES = ["Other", "Control", "Extend", "Prepend", "HangulL", "HangulV", "HangulT", "HangulLV", "HangulLVT", "Pictographic",
             "Spacing", "ExtendPlain", "Linker", "Consonant"]
NUMERIC, PUNCTUATION, MARK, SPLIT_WORD = 1 << 4, 1 << 5, 1 << 6, 1 << 7
SCRIPTS = ["Arabic", "Cyrillic", "Devanagari", "Greek", "Han", "Hangul", "Hebrew", "Hiragana", "Katakana", "Latin", "Thai"]
BLOCK = 256
ALL = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xAC00 + 11172)


def matched(pattern):
    """The code points a one-character pattern matches in the split engine."""
    rest = pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str("".join(ALL))
    out, at = [], 0
    for _, (start, end) in rest + [("", (len(ALL), len(ALL)))]:
        out += map(ord, ALL[at:start])
        at = end
    return out


def word_characters():
    """The code points next to which a single_word added token is not found."""
    tokenizer = Tokenizer(models.BPE(vocab={}, merges=[]))
    tokenizer.add_tokens([AddedToken("XX", single_word=True, normalized=False)])
    found = tokenizer.encode_batch([c + "XX" for c in ALL])
    return [ord(c) for c, e in zip(ALL, found) if not e.ids]


def combining_classes(nfd):
    """Canonical combining classes, up to renaming that keeps their order.

    A mark sorts before another exactly if its class is smaller and not 0, so a
    handful of comparisons by the reference's own NFD places each mark.
    """
    def swaps(a, b):  # a b is reordered to b a
        return nfd(a + b) == b + a and a != b

    low, high = "\u0334", "\u0345"  # classes 1 and 240, the ends of the scale
    marks = [c for c in ALL if nfd(c) == c and (swaps(high, c) or swaps(c, low) or c in (low, high))]
    groups = []  # one representative and the members, ascending
    for mark in marks:
        lo, hi = 0, len(groups)
        while lo < hi:
            mid = (lo + hi) // 2
            if swaps(mark, groups[mid][0]):
                lo = mid + 1
            elif swaps(groups[mid][0], mark):
                hi = mid
            else:
                groups[mid].append(mark)
                break
        else:
            groups.insert(lo, [mark])
    return {ord(m): i + 1 for i, group in enumerate(groups) for m in group}


def normalization():
    nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    decomposed, composed, unstable = {}, {}, set()
    classes = combining_classes(nfd)
    for c in ALL:
        d = nfd(c)
        if ord(c) in HANGUL:
            continue
        if d != c:
            decomposed[ord(c)] = d
        if nfc(c) != c:
            unstable.add(ord(c))
        elif len(d) > 1:
            first = nfc(d[:-1])
            assert len(first) == 1 and nfc(first + d[-1]) == c, hex(ord(c))
            composed[(ord(first), ord(d[-1]))] = ord(c)
            unstable.add(ord(d[-1]))
    unstable |= set(classes) | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    return decomposed, composed, unstable, classes


def isolated(pre_tokenizer):
    """The code points that a pre-tokenizer takes away when it stands between two letters."""
    out = []
    for c in ALL:
        if len(pre_tokenizer.pre_tokenize_str("a" + c + "a")) == 2:
            out.append(ord(c))
    return out


def charsmap(lead):
    """A Precompiled normalizer that writes X for what begins with one of some bytes."""
    units = [0] * 1024
    units[0] = 256 << 10
    for b in lead:  # a node of a double array: label, leaf flag, offset of its value
        at = 256 ^ b
        units[at] = b | 1 << 8 | 512 << 10
        units[at ^ 512] = 1 << 31
    blob = struct.pack("<I", 4 * len(units)) + struct.pack("<1024I", *units) + b"X\0"
    return normalizers.Precompiled(blob).normalize_str


def graphemes():
    """Grapheme classes, as far as clusters of at most five bytes show them.

    Precompiled writes a short cluster as one, and a longer one rune by rune.
    """
    after_a = charsmap([ord("a")])
    every = charsmap(range(0xC2, 0xF5))
    kinds = {}
    for c in ALL:
        size = len(c.encode())
        if after_a("a" + c) == "X":
            # A mark behind makes a short cluster of what is not joined.
            if every("\u00a9" + c + "\u200d\u00a9\u0301") != "XXXXX":
                kinds[ord(c)] = "Spacing"
            elif size == 3 and every("\u0915" + c + "\u0915\u0301") == "XXXX":
                kinds[ord(c)] = "Linker"
            elif every("\u0915\u094d" + c + "\u0915\u0301") == "XXXXX":
                kinds[ord(c)] = "Extend"
            else:
                kinds[ord(c)] = "ExtendPlain"  # no part of a conjunct
        elif size == 3 and every("\u0915\u094d" + c + "\u0301") == "XXXX":
            kinds[ord(c)] = "Consonant"
        elif size > 1 and every(c + "a") == "X":
            kinds[ord(c)] = "Prepend"
        elif size == 1 and charsmap(c.encode())(c + "\u0301") != "X":
            kinds[ord(c)] = "Control"
        elif 1 < size < 4 and every(c + "\u0301") != "X":
            kinds[ord(c)] = "Control"
        elif every("\u00a9\u200d" + c) == "XXX":
            kinds[ord(c)] = "Pictographic"
        else:  # after a prepended sign of two bytes a syllable's first part of three makes five
            after = {name: every("\u0600" + before + c) == "XXX" for name, before in [("L", "\u1100"), ("LV", "\uac00"), ("LVT", "\uac01")]} if size == 3 else {}
            if any(after.values()):
                kinds[ord(c)] = "HangulT" if after["LVT"] else "HangulV" if after["LV"] else {
                    True: "HangulL", False: None}[every("\u0600" + c + "\u1100") == "XXX"] or (
                    "HangulLV" if every("\u0600" + c + "\u1161") == "XXX" else "HangulLVT")
    return kinds


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def two_level(values):
    blocks, index, data = {}, [], bytearray()
    for at in range(0, 0x110000, BLOCK):
        block = bytes(values[at:at + BLOCK])
        if block not in blocks:
            blocks[block] = len(blocks)
            data += block
        index.append(blocks[block])
    assert len(blocks) <= 256
    return bytes(index), bytes(data)


def go_string(name, comment, data, out):
    out.append(f"// {comment}\nconst {name} = \"\" +")
    lines = ["\t\"" + "".join(f"\\x{b:02x}" for b in data[i:i + 256]) + "\"" for i in range(0, len(data), 256)]
    out.append(" +\n".join(lines) + "\n")


def main():
    values = bytearray(0x110000)
    for i, category in enumerate(CATEGORIES):
        if i:
            for c in matched(r"\p{%s}" % category) if category != "Cs" else []:
                values[c] = i
    for c in matched(r"\s"):
        values[c] |= SPACE
    for c in word_characters():
        values[c] |= WORD
    decomposed, composed, unstable, classes = normalization()
    for c in unstable:
        values[c] |= UNSTABLE
    ccc = bytearray(0x110000)
    for c, k in classes.items():
        ccc[c] = k

    assert set(matched(r"\d")) == {c for c in range(0x110000) if values[c] & 31 == CATEGORIES.index("Nd")}
    traits = bytearray(0x110000)
    for c, kind in graphemes().items():
        traits[c] = GRAPHEMES.index(kind)
    for bit, points in [
        (NUMERIC, [ord(c) for c in ALL if len(pre_tokenizers.Digits(True).pre_tokenize_str("a" + c)) == 2]),
        (PUNCTUATION, isolated(pre_tokenizers.Punctuation("removed"))),
        (MARK, [ord(c) for c in ALL if not normalizers.StripAccents().normalize_str(c)]),
        (SPLIT_WORD, matched(r"\w")),
    ]:
        for c in points:
            traits[c] |= bit
    compat, lower = {}, {}
    for c in ALL:
        d = normalizers.NFKD().normalize_str(c)
        if d != normalizers.NFD().normalize_str(c):
            compat[ord(c)] = d
        if (d := normalizers.Lowercase().normalize_str(c)) != c:
            lower[ord(c)] = d

    out = ["// Code generated by tools/vocab/unicode.py; DO NOT EDIT.\n\npackage tokenizer\n"]
    out.append("// The general categories, as numbered in classData.\nconst (\n\tgc%s = iota" % CATEGORIES[0])
    out += [f"\tgc{c}" for c in CATEGORIES[1:]] + [")\n"]
    out.append("// The grapheme classes, as numbered in traitData.\nconst (\n\tgrapheme%s = iota" % GRAPHEMES[0])
    out += [f"\tgrapheme{c}" for c in GRAPHEMES[1:]] + [")\n"]
    for name, comment, data in [
        ("classIndex", "classIndex gives the block of classData for each 256 code points.", two_level(values)[0]),
        ("classData", "classData holds general category, white space, word and normalization bits.", two_level(values)[1]),
        ("traitIndex", "traitIndex gives the block of traitData for each 256 code points.", two_level(traits)[0]),
        ("traitData", "traitData holds grapheme class, numeric, punctuation, mark and word bits.", two_level(traits)[1]),
        ("cccIndex", "cccIndex gives the block of cccData for each 256 code points.", two_level(ccc)[0]),
        ("cccData", "cccData holds the rank of the canonical combining class; 0 is a starter.", two_level(ccc)[1]),
    ]:
        go_string(name, comment, data, out)

    def u24(*numbers):
        return b"".join(n.to_bytes(3, "big") for n in numbers)

    for name, title, table in [("decomp", "full canonical decompositions", decomposed),
                               ("compat", "full compatibility decompositions that are not canonical ones", compat),
                               ("lower", "small forms", lower)]:
        text, entries = bytearray(), bytearray()
        for c in sorted(table):
            d = table[c].encode()
            entries += u24(c, len(text)) + bytes([len(d)])
            text += d
        go_string(name + "Index", f"{name}Index has 7 bytes for each code point of {name}Text, ascending: it, offset, length.", bytes(entries), out)
        go_string(name + "Text", f"{name}Text holds the {title}.", bytes(text), out)
    pairs = b"".join(u24(a, b, composed[a, b]) for a, b in sorted(composed))
    go_string("composePairs", "composePairs has 9 bytes for each primary composite, ascending: first, second, composite.", pairs, out)
    out.append("// scripts holds the first and last code points, 3 bytes each, of the ranges of each script.\nvar scripts = map[string]string{")
    for script in SCRIPTS:
        data = b"".join(u24(a, b) for a, b in ranges(matched(r"\p{%s}" % script)))
        out.append(f"\t\"{script}\": \"" + "".join(f"\\x{b:02x}" for b in data) + "\",")
    out.append("}\n")
    root = pathlib.Path(__file__).resolve().parents[2]
    path = root / "internal/model/tokenizer/unicode_tables.go"
    path.write_text("\n".join(out), encoding="ascii")
    subprocess.run(["gofmt", "-w", path], check=True)


if __name__ == "__main__":
    main()
