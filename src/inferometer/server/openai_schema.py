"""The bodies of OpenAI's routes, with the extensions that other servers' clients send."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from inferometer.server.body import Body
from inferometer.server.openai_refusals import ROLES

Prompt = str | tuple[int, ...]
"""A text, or the ids of its tokens."""

_WHOLE: Final = {"type": "integer"}
_TEXT: Final = {"type": "string"}
_ROLE: Final = {"enum": list(ROLES)}


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ValueError("must be a text or a list of texts")


def _ids(value: Any) -> tuple[int, ...] | None:
    """The token ids that a list holds, None if it is anything else."""
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return tuple(value)
    return None


def _prompts(value: Any) -> tuple[Prompt, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise ValueError("must be a text, a list of texts, a list of token ids or a list of lists of token ids")
    if not value:
        raise ValueError("must not be empty")
    if (ids := _ids(value)) is not None:
        return (ids,)
    if isinstance(value[0], str):
        return _texts(value)
    rows = []
    for item in value:
        row = _ids(item)
        if row is None:
            raise ValueError("must hold texts, token ids or lists of at least one token id, all of a kind")
        rows.append(row)
    return tuple(rows)


def _biases(value: Any) -> Mapping[int, float]:
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids with numbers")
    biases = {}
    for name, bias in value.items():
        if not (name.isascii() and name.isdecimal() and len(name) <= 20):
            raise ValueError("must have token ids (whole numbers) for names")
        if type(bias) not in (int, float) or not math.isfinite(bias) or abs(bias) > 100:
            raise ValueError("must have numbers from -100 to 100 for values")
        biases[int(name)] = float(bias)
    return biases


def _messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of at least one message")
    for place, message in enumerate(value):
        if not isinstance(message, dict):
            raise ValueError(f"must hold objects with role and content, and number {place} is {_kind(message)}")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise ValueError(f"must hold objects with a role, which is a text; that of number {place} is {_kind(role)}")
        if content is None and not message.get("tool_calls"):
            raise ValueError(f"must hold objects with content; that of number {place} is null or missing")
        if content is not None and not _is_content(content):
            raise ValueError(f"must have a text or a list of parts with their type as content; that of number {place} is another")
    return tuple(value)


def _kind(value: Any) -> str:
    """What a value that was refused is, in JSON's words."""
    if value is None:
        return "null or missing"
    names = {bool: "true or false", int: "a number", float: "a number", str: "an empty text" if not value else "a text", list: "a list"}
    return names.get(type(value), "an object")


def _is_content(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) and (part["type"] != "text" or isinstance(part.get("text"), str))
        for part in value
    )


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


Texts = Annotated[tuple[str, ...], PlainValidator(_texts), WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]})]
Prompts = Annotated[
    tuple[Prompt, ...],
    PlainValidator(_prompts),
    WithJsonSchema({"anyOf": [_TEXT, _array(_TEXT), _array(_WHOLE), _array(_array(_WHOLE))]}),
]
Biases = Annotated[
    Mapping[int, float],
    PlainValidator(_biases),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}),
]
Messages = Annotated[
    tuple[Mapping[str, Any], ...],
    PlainValidator(_messages),
    WithJsonSchema(
        _array(
            {
                "type": "object",
                "required": ["role", "content"],
                "properties": {
                    "role": _ROLE,
                    "content": {"anyOf": [_TEXT, {"type": "array", "items": {"type": "object"}}]},
                },
            }
        )
    ),
]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**64)]


class StreamOptions(Body):
    """include_usage: a last chunk with the usage. continuous_usage_stats: every chunk carries it as well."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAIRequest(Body):
    """What both routes that generate take. null is as good as left out; the rules are `openai_validation`'s.

    Other fields are kept, so that those which ask for what is not there can be refused instead of being passed over.
    """

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    n: Whole | None = None
    stop: Texts | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Biases | None = None
    seed: Whole | None = None
    max_tokens: Whole | None = None
    # Extensions, as vLLM and SGLang have them.
    top_k: Whole | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Whole | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[Whole], Field(fail_fast=True)] | None = None


class CompletionRequest(OpenAIRequest):
    """Prompts to be continued."""

    prompt: Prompts
    best_of: Whole | None = None
    echo: bool | None = None
    logprobs: Whole | None = None


class ChatRequest(OpenAIRequest):
    """A conversation whose next message is wanted."""

    messages: Messages
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = None


class EmbeddingRequest(Body):
    """Texts to be embedded."""

    model_config = ConfigDict(extra="allow")

    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole | None = None
