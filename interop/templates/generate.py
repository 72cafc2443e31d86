"""Writes the goldens of internal/model/chat from real Jinja2.

    python interop/templates/generate.py

reads internal/model/chat/testdata (templates x conversations) and
internal/model/chat/jinja/testdata (snippets, and expressions x values) and writes
the *.golden.jsonl files beside them.
"""

import json
from pathlib import Path

import reference

CHAT = Path(__file__).resolve().parents[2] / "internal" / "chat"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def write(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")


def conversations():
    for path in sorted((CHAT / "testdata" / "conversations").glob("*.json")):
        yield path.stem, {"tokens": TOKENS, **json.loads(path.read_text(encoding="utf-8"))}


def chats():
    for path in sorted((CHAT / "testdata" / "templates").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        rows = []
        for name, request in conversations():
            result = reference.outcome(lambda: reference.chat(source, request))
            rows.append({"conversation": name, **result})
        write(CHAT / "testdata" / "golden" / f"{path.stem}.golden.jsonl", rows)


def render(source, **variables):
    return reference.outcome(lambda: reference.ENV.from_string(source).render(**variables))


def snippets():
    data = CHAT / "jinja" / "testdata"
    variables = json.loads((data / "vars.json").read_text(encoding="utf-8"))
    rows = []
    for source in (data / "snippets.txt").read_text(encoding="utf-8").split("\n----\n"):
        rows.append({"source": source, **render(source, **variables)})
    write(data / "snippets.golden.jsonl", rows)


def expressions():
    """Every expression with v set to every value, written as template text."""
    data = CHAT / "jinja" / "testdata"
    values = (data / "values.txt").read_text(encoding="utf-8").splitlines()
    rows = []
    for expr in (data / "exprs.txt").read_text(encoding="utf-8").splitlines():
        results = [render(f"{{% set v = {value} %}}{{{{ {expr} }}}}") for value in values]
        rows.append({"expr": expr, "results": [compact(r) for r in results]})
    write(data / "exprs.golden.jsonl", rows)


def compact(result):
    if "text" in result:
        return "=" + result["text"]
    if "error" in result:
        return "!" + result["error"]
    return "?"


if __name__ == "__main__":
    chats()
    snippets()
    expressions()
