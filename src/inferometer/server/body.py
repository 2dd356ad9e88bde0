"""The body of a request: bounded, JSON, and of the form that its route declares."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from inferometer.errors import shown
from inferometer.server.failures import ApiError, ClientGoneError

_SWALLOWED: Final = 32
"""So many times the limit is read and forgotten, so that a client that sends too much gets to read why."""
_SURROGATE: Final = "The body holds a lone surrogate, as \\ud800: half of a pair that stands for one character"
_NO_JSON: Final = {
    "lone leading surrogate": _SURROGATE,
    "unexpected end of hex escape": _SURROGATE,
    "invalid unicode code point": "The body is not UTF-8 text",
}
"""What the parser says, and what is answered. The end of a hex escape is unexpected to it where the first half of a pair has no second; an
escape that is cut short is another mistake.
"""


class Body(BaseModel):
    """A JSON object. Numbers are numbers (no text, no truth values, no whole number with a fraction), neither NaN nor infinite.

    Unknown fields are ignored, as clients of later versions send them.
    """

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


B = TypeVar("B", bound=Body)


async def read_body(request: Request, model: type[B], limit: int) -> B:
    """The body of `request` as a `model`.

    Raises ApiError: 415 unless it is declared to be plain JSON, 413 beyond `limit` bytes, 400 for what is not JSON or gives a key of an
    object twice, 422 for the wrong form.
    Raises ClientGoneError. How long it may take to arrive is the connection's to say.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise ApiError(415, "unsupported_media_type", "Expected a request with `Content-Type: application/json`")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ApiError(415, "unsupported_media_type", "The body must not be compressed: send it without `Content-Encoding`")
    data = await read_bytes(request, limit)
    _refuse_twice(data)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise _failure(error) from None


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body, at most `limit` bytes. Raises ApiError (413) and ClientGoneError."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit * _SWALLOWED:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size <= limit:
            parts.append(part)
        elif size > limit * _SWALLOWED:
            break
        if not message.get("more_body", False):
            break
    if size > limit:
        raise _too_large(limit)
    return b"".join(parts)


def _refuse_twice(data: bytes) -> None:
    """Raises ApiError (400) where an object has a key twice, of which pydantic takes the last. What is not JSON is for that to tell."""
    with suppress(ValueError, RecursionError):
        json.loads(data, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise ApiError(400, "validation", f"{shown(name, ascii)} is given twice in the body: give it once")
        names.add(name)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "payload_too_large", f"The body is larger than {limit} bytes", headers={"Connection": "close"})


def _failure(error: ValidationError) -> ApiError:
    """In one line, without the input: pydantic's messages of these kinds quote none, and a place is named only as the schema knows it."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(
            400, "validation", next((said for words, said in _NO_JSON.items() if words in first["msg"]), "The body is not valid JSON")
        )
    place = ".".join(str(part) for part in first["loc"][:3])
    message = first["msg"] if first["type"] != "value_error" else first["msg"].removeprefix("Value error, ")
    return ApiError(422, "validation", f"{place}: {message}" if place else message, param=place or None)
