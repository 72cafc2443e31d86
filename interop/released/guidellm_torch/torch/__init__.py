"""What GuideLLM uses of torch, which is the order in which its prompts come: torch itself
comes with CUDA, 3 GB, and does nothing else there. Requests, clocks and figures are
GuideLLM's own."""

import random

from . import utils  # noqa: F401


class Generator(random.Random):
    def manual_seed(self, seed):
        self.seed(seed)
        return self
