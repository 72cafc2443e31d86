"""A logits processor for vLLM by which a model of random weights says what its prompt
asks for: vllm serve --logits-processors scripted:Scripted, with this folder in
PYTHONPATH.

A prompt asks with "say:" and the base64 of a text, and a full stop. Where it asks
several times the last one counts. The answer is that text, encoded by the model's own
tokenizer, and an end id. Of several texts with "|" between them it is the first whose
beginning a guide lets pass. One with "slowly:" is answered by the same
word over and over, a hundredth of a second each at least, so that there is time to leave.
Any other prompt is answered by the model.
"""

import base64
import re
import time

import torch
from transformers import AutoTokenizer
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

ASKED = re.compile(r"say:([A-Za-z0-9+/]+=*(?:\|[A-Za-z0-9+/]+=*)*)\.")


class Scripted(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        self.tokenizer = AutoTokenizer.from_pretrained(vllm_config.model_config.tokenizer)
        self.scripts = {}  # by place in the batch: the texts' ids, those said so far, and the pause before each
        self.endless = self.tokenizer.encode(" weir" * vllm_config.model_config.max_model_len, add_special_tokens=False)

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        if batch_update is None:
            return
        for at in batch_update.removed:
            self.scripts.pop(at, None)
        for at, _, prompt, said in batch_update.added:
            self.scripts.pop(at, None)
            read = self.tokenizer.decode(prompt or [])
            if asked := ASKED.findall(read):
                texts = [base64.b64decode(t).decode() for t in asked[-1].split("|")]
                ids = [self.tokenizer.encode(t, add_special_tokens=False) + [self.tokenizer.eos_token_id] for t in texts]
                self.scripts[at] = (ids, said, 0)
            elif "slowly:" in read:
                self.scripts[at] = ([self.endless], said, 0.01)
        for a, b, how in batch_update.moved:
            one, other = self.scripts.pop(a, None), self.scripts.pop(b, None)
            if one is not None:
                self.scripts[b] = one
            if how == MoveDirectionality.SWAP and other is not None:
                self.scripts[a] = other

    def apply(self, logits):
        time.sleep(max((pause for _, _, pause in self.scripts.values()), default=0))
        for at, (texts, said, _) in self.scripts.items():
            begun = [t for t in texts if t[: len(said)] == list(said) and len(said) < len(t)]
            ids = next((t for t in begun if logits[at, t[len(said)]] > -torch.inf), begun[0] if begun else [])
            if len(said) < len(ids):
                wanted = logits[at, ids[len(said)]].clone()
                logits[at] = -torch.inf
                logits[at, ids[len(said)]] = wanted
        return logits
