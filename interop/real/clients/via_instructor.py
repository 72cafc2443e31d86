"""instructor, in the modes that ask an OpenAI server for a document."""

import instructor
from openai import OpenAI

from dialogue import BASE, MODEL, must_call, run
from document import Document

MODES = {
    "tools": instructor.Mode.TOOLS,
    "JSON schema": instructor.Mode.JSON_SCHEMA,
    "JSON": instructor.Mode.JSON,
    "Responses tools": instructor.Mode.RESPONSES_TOOLS,
}


def five(tool):
    return [{"role": "user", "content": must_call(tool, {"n": 5})}]


def ask(mode, model=MODEL, **more):
    client = instructor.from_openai(OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0, timeout=300), mode=MODES[mode])
    document, r = client.create_with_completion(model=model, response_model=Document, messages=five("Document"), max_retries=0, **more)
    usage = [r.usage.prompt_tokens, r.usage.completion_tokens] if mode.startswith("JSON") else None  # forced calls are not written alike
    return {"document": document.model_dump(), "usage": usage}


def partial(mode):
    client = instructor.from_openai(OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0, timeout=300), mode=MODES[mode])
    last = None
    for last in client.create_partial(model=MODEL, response_model=Document, messages=five("PartialDocument"), max_retries=0, temperature=0):
        pass
    return {"document": last.model_dump()}


def refused(f):
    """What the server said, which instructor wraps in an error of its own."""
    try:
        return f()
    except Exception as e:
        while getattr(e, "status_code", None) is None and (e.__cause__ or e.__context__) is not None:
            e = e.__cause__ or e.__context__
        raise e


dialogues = {}
for mode in MODES:
    dialogues |= {
        mode + " whole": lambda mode=mode: ask(mode, temperature=0),
        mode + " bad field": lambda mode=mode: refused(lambda: ask(mode, temperature=-1)),
        mode + " unknown model": lambda mode=mode: refused(lambda: ask(mode, model="no-such-model")),
    }
for mode in ("tools", "JSON schema"):
    dialogues[mode + " streamed"] = lambda mode=mode: partial(mode)
run(dialogues)
