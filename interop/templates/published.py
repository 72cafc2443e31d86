"""Renders published chat templates as Hugging Face transformers itself does.

    published.py

answers one JSON object a line. {"source": ..., "request": {...}} renders a
conversation; {"folder": ..., "request": {...}} renders it by the template of a
model's folder and gives its ids. Two things differ from transformers: without a
folder strftime_now formats a fixed time, and the tokenizer of a folder is
tokenizer.json as it is, not what a class of transformers makes of it.
"""

import json
import sys
from datetime import datetime
from pathlib import Path

import tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

import reference


class Clock:
    fixed = True

    @staticmethod
    def now():
        return reference.NOW if Clock.fixed else datetime.now()


chat_template_utils.datetime = Clock


def token(value):
    return value["content"] if isinstance(value, dict) else value


def load(folder):
    config = json.loads(Path(folder, "tokenizer_config.json").read_text(encoding="utf-8"))
    names = {k: token(v) for k, v in config.items() if k.endswith("_token") and isinstance(token(v), str)}
    loaded = PreTrainedTokenizerFast(tokenizer_file=str(Path(folder, "tokenizer.json")), **names)
    loaded.chat_template = config.get("chat_template")
    own = Path(folder, "chat_template.jinja")
    if own.exists():
        loaded.chat_template = own.read_text(encoding="utf-8")
    if isinstance(loaded.chat_template, list):
        loaded.chat_template = {t["name"]: t["template"] for t in loaded.chat_template}
    return loaded


BARE = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), bos_token="<s>", eos_token="</s>")
FOLDERS = {}


def apply(tokenizer, job, tokenize):
    request = job["request"]
    options = {k: request[k] for k in ("tools", "documents", "add_generation_prompt", "continue_final_message") if k in request}
    out = tokenizer.apply_chat_template(
        request["messages"], chat_template=job.get("source"), tokenize=tokenize, return_dict=False, **options, **request.get("kwargs", {})
    )
    return out


def main():
    for line in sys.stdin:
        job = json.loads(line)
        Clock.fixed = "folder" not in job
        if "folder" not in job:
            result = reference.outcome(lambda: apply(BARE, job, False))
        else:
            if job["folder"] not in FOLDERS:
                FOLDERS.clear()
                FOLDERS[job["folder"]] = load(job["folder"])
            tokenizer = FOLDERS[job["folder"]]
            result = reference.outcome(lambda: apply(tokenizer, job, False))
            if "text" in result:
                result["ids"] = apply(tokenizer, job, True)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
