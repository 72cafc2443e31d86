"""Every field of the request types of the official clients, one JSON object per line:
{"api": NAME, "path": PATH}, with paths as api.Covers takes them. No server is asked.
"""

import collections.abc
import json
import types
import typing

import openai.types
import typing_extensions as te
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params

WRAPPERS = (te.Required, te.NotRequired, te.ReadOnly, typing.Required, typing.NotRequired, typing.Annotated)

# Parameters of a method of the client that are fields of the request's head.
HEADS = {"betas": "header anthropic-beta", "user_profile_id": "header anthropic-user-profile-id", "workspace_id": "header anthropic-workspace-id"}


def bare(t):
    while typing.get_origin(t) in WRAPPERS:
        t = typing.get_args(t)[0]
    return t.__value__ if isinstance(t, te.TypeAliasType) else t


def members(t):
    """The types that a value may have."""
    t = bare(t)
    if typing.get_origin(t) in (typing.Union, types.UnionType):
        for a in typing.get_args(t):
            yield from members(a)
    else:
        yield t


def kinds(hints):
    """The words that the member "type" may be; none where it is no word."""
    found = []
    for t in members(hints.get("type", str)):
        if typing.get_origin(t) in (typing.Literal, te.Literal):
            found += typing.get_args(t)
    return found


def walk(t, path, seen, out):
    for t in members(t):
        origin, args = typing.get_origin(t), typing.get_args(t)
        if te.is_typeddict(t):
            if t in seen:
                continue
            hints = te.get_type_hints(t, include_extras=True)
            of = kinds(hints)
            at = f"{path}<{'|'.join(map(str, of))}>" if path and of else path
            if path and of:
                out.add(at)
            for name, hint in hints.items():
                if name == "type" and of:
                    continue
                inside = f"{at}.{name}" if at else name
                out.add(inside)
                walk(hint, inside, seen | {t}, out)
        elif args and isinstance(origin, type) and issubclass(origin, collections.abc.Iterable) and not issubclass(origin, (dict, str)):
            walk(args[0], path + "[]", seen, out)
        elif args and getattr(origin, "__name__", "") == "SequenceNotStr":
            walk(args[0], path + "[]", seen, out)


def main():
    for api, params in (
        ("chat", chat_params.CompletionCreateParamsStreaming),
        ("completions", completion_create_params.CompletionCreateParamsStreaming),
        ("responses", response_create_params.ResponseCreateParamsStreaming),
        ("embeddings", embedding_create_params.EmbeddingCreateParams),
        ("messages", message_create_params.MessageCreateParamsStreaming),
        ("messages", beta_params.MessageCreateParamsStreaming),
        ("count_tokens", message_count_tokens_params.MessageCountTokensParams),
        ("count_tokens", beta_count_params.MessageCountTokensParams),
    ):
        out = set()
        walk(params, "", frozenset(), out)
        for path in sorted(out):
            print(json.dumps({"api": api, "path": HEADS.get(path, path)}))


main()
