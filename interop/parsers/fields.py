"""Lists the fields of requests that vLLM, SGLang and OpenAI declare, for fields_test.go to compare.

    fields.py VLLM SGLANG

Standard input: [[server, class or FILE:class], ...]. Standard output: a JSON list
of lists of names, one for each class. The sources are read, not run.
"""

import ast
import json
import sys
from pathlib import Path

import openai

ROOTS = {"vllm": Path(sys.argv[1], "vllm"), "sglang": Path(sys.argv[2], "sglang/srt"), "openai": Path(openai.__file__).parent / "types"}
FILES = {
    "vllm": ["entrypoints/**/protocol.py", "sampling_params.py"],
    "openai": ["chat/completion_create_params.py", "completion_create_params.py", "embedding_create_params.py"],
    "sglang": ["entrypoints/openai/protocol.py", "managers/io_struct.py", "sampling/sampling_params.py"],
}


def classes(server):
    """All classes by name; a name may stand for several."""
    found = {}
    for pattern in FILES[server]:
        for file in sorted(ROOTS[server].glob(pattern)):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append((file, node))
    return found


def fields(found, name, file=None):
    here = [pair for pair in found.get(name, []) if pair[0] == file] or found.get(name, [])
    if not here:
        return []
    file, node = here[0]
    names = []
    for base in node.bases:
        names += fields(found, base.id, file) if isinstance(base, ast.Name) else []
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and "ClassVar" not in ast.unparse(line.annotation):
            names.append(line.target.id)
    return [n for n in names if not n.startswith("_")]


known = {server: classes(server) for server in ROOTS}


def of(server, name):
    file, _, cls = name.rpartition(":")
    return fields(known[server], cls, ROOTS[server] / file)


print(json.dumps([of(server, name) for server, name in json.load(sys.stdin)]))
