"""Finds chat templates that Python modules carry as strings.

    carried.py VLLM SGLANG TRANSFORMERS_TESTS

Standard output: a JSON object of the templates by the module that has them and the line.
"""

import ast
import json
import sys
from pathlib import Path

import transformers

ROOTS = {"vllm": Path(sys.argv[1], "vllm"), "sglang": Path(sys.argv[2], "sglang"), "transformers": Path(transformers.__file__).parent, "transformers-tests": Path(sys.argv[3])}

found = {}
for package, root in ROOTS.items():
    for file in sorted(root.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        if "{%" not in source or "messages" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            text = node.value if isinstance(node, ast.Constant) else None
            # A template begins with markup; a docstring or a page does not.
            if isinstance(text, str) and "{%" in text and "message in messages" in text and text.lstrip()[0] in "{<" and "<h3>" not in text:
                found[f"{package}/{file.stem} {node.lineno}"] = text
print(json.dumps(found))
