"""Gives weir's launcher (integrations/sglang) over a release that is imported without
a GPU (stubs)."""

import importlib.util
import pathlib

import stubs

PATH = pathlib.Path(__file__).parent.parent.parent / "integrations" / "sglang" / "weir_sglang.py"


def of(root):
    spec = importlib.util.spec_from_file_location("weir_sglang", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # sets the codec
    stubs.install(pathlib.Path(root).resolve())
    return module
