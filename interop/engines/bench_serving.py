"""Runs sglang.bench_serving several times in one process.

    bench_serving.py '[["--backend", "sglang", ...], ...]'

Each list holds the arguments of one run, which runs as if it were the program itself.
"""

import json
import runpy
import sys

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["bench_serving", *arguments]
    # A run leaves nothing behind but imported modules: its own globals are new each time.
    sys.modules.pop("sglang.bench_serving", None)
    runpy.run_module("sglang.bench_serving", run_name="__main__")
