"""The reference that weir's chat templates are measured against.

The environment is the one that Hugging Face transformers (5.x) builds for chat
templates, written down again here from its behaviour, so that the goldens need
Jinja2 only: immutable sandbox, trim_blocks, lstrip_blocks, loop controls, a
generation tag that renders its body, tojson without HTML escapes,
raise_exception, strftime_now, and a namespace that refuses names with a leading
underscore; and what is null in a message is left out. One thing differs on purpose: strftime_now formats a fixed time.
"""

import copy
import json
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils

assert jinja2.__version__.startswith("3.1."), jinja2.__version__

NOW = datetime(2026, 3, 7, 5, 6, 9, 12345)
REASONING = ("reasoning_content", "thinking", "reasoning")
TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


class SafeNamespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        attrs = dict(*args[1:], **kwargs)
        for name in attrs:
            refuse_underscore(name)
        jinja2.utils.Namespace.__init__(args[0], attrs)

    def __setitem__(self, name, value):
        refuse_underscore(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def refuse_underscore(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"underscore-prefixed attribute {name!r}")


class SafeDict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class Raised(jinja2.exceptions.TemplateError):
    """What raise_exception raises."""


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals.update(
        raise_exception=raise_exception,
        strftime_now=lambda format: NOW.strftime(format),
        dict=SafeDict(),
        namespace=SafeNamespace,
    )
    return env


ENV = environment()


def alias_reasoning(message):
    found = next((message[k] for k in REASONING if k in message), None)
    if found is None:
        return message
    return {"thinking": found, **message, "reasoning_content": found}


def chat(source, request):
    """Renders one conversation as apply_chat_template(tokenize=False) does."""
    template = ENV.from_string(source)
    messages = [{k: v for k, v in m.items() if v is not None} for m in copy.deepcopy(request["messages"])]
    messages = [alias_reasoning(m) for m in messages]
    go_on = request.get("continue_final_message", False)
    final = None
    if go_on:
        final = messages[-1]["content"]
        if isinstance(final, list):
            part = next(p for p in reversed(final) if "text" in p)
            final, part["text"] = part["text"], part["text"] + TAG
        else:
            messages[-1]["content"] = final + TAG
    out = template.render(
        messages=messages,
        tools=request.get("tools"),
        documents=request.get("documents"),
        add_generation_prompt=request.get("add_generation_prompt", False),
        **{**request.get("tokens", {}), **request.get("kwargs", {})},
    )
    if go_on:
        if final.strip() not in out or TAG.strip() not in out:
            raise ValueError("the final message does not appear in the chat")
        at = out.rindex(TAG.strip())
        out = out[:at] if out[at : at + len(TAG)] == TAG else out[:at].rstrip()
    return out


def outcome(render):
    """The text, or the class and words of the failure."""
    try:
        text = render()
    except Exception as e:  # every failure of a template is a result here
        return {"error": type(e).__name__, "message": str(e)}
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"skip": "a lone surrogate"}
    if " at 0x" in text:
        return {"skip": "prints an address"}
    return {"text": text}
