#!/usr/bin/env python3
"""Measures the reference libraries for bench/tokenize.

Reads JSON lines: {"library", "dir", "text", "seconds"}, text being a file.
Answers each with {"tokens", "tokens_per_second"}, of one thread, its caches
warm after the first pass.
"""

import json
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def load(library, folder):
    if library == "tokenizers":
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    spec = json.loads(pathlib.Path(folder, "spec.json").read_text(encoding="utf-8"))
    encoding = tiktoken.Encoding("weir", pat_str=spec["pattern"], special_tokens={},
                                 mergeable_ranks=load_tiktoken_bpe(os.path.join(folder, spec["file"])))
    return lambda text: len(encoding.encode_ordinary(text))


def main():
    loaded = {}
    for line in sys.stdin:
        ask = json.loads(line)
        key = ask["library"], ask["dir"]
        if key not in loaded:
            loaded[key] = load(*key)
        encode = loaded[key]
        text = pathlib.Path(ask["text"]).read_text(encoding="utf-8")
        best = float("inf")
        end = time.perf_counter() + ask["seconds"]
        while True:
            start = time.perf_counter()
            tokens = encode(text)
            now = time.perf_counter()
            best = min(best, now - start)
            if now > end:
                break
        print(json.dumps({"tokens": tokens, "tokens_per_second": tokens / best}), flush=True)


if __name__ == "__main__":
    main()
