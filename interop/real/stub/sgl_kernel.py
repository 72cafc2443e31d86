"""Stands for SGLang's own CPU kernels, which no package index has. SGLang imports their names when
it loads and calls them only if it finds AMX, which it looks for in torch.ops.sgl_kernel: without
that it computes with torch.

SGLang's LoRA asks for memory that is pinned for a GPU, and a prefill engine records an event behind
its copies; torch asks CUDA's driver for both. Without one all memory is alike, and a copy is over when
it returns.
"""

import functools

import torch


def __getattr__(name):
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} is not installed")

    return missing


def unpinned(make):
    @functools.wraps(make)
    def made(*args, pin_memory=False, **kwargs):
        return make(*args, **kwargs)

    return made


class Event:
    def record(self, *args):
        pass

    synchronize = wait = record

    def query(self):
        return True


if not torch.cuda.is_available():
    for name in ("arange", "empty", "tensor", "zeros"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *args: self
    torch.cuda.Event, torch.cuda.current_stream = Event, lambda *args: None
