"""Stands for SGLang's own CPU kernels, which no package index has. SGLang imports their names when
it loads and calls them only if it finds AMX, which it looks for in torch.ops.sgl_kernel: without
that it computes with torch.
"""


def __getattr__(name):
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} is not installed")

    return missing
