"""The two APIs that a server may speak: how a request of theirs is made, and how many tokens an event of their streams holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from inferometer.bench.backends.request import Api
from inferometer.bench.serving.sse import Event, StreamError
from inferometer.errors import shown

Prompt = str | Sequence[int]
"""A text, or token ids."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of a stream says. None is unknown.

    tokens: how many it carries. total: all tokens of the request, where the server says so. prompt: the prompt's. error: the server's
    words for why there will be no more. ends: whether the stream is complete with it.
    """

    tokens: int | None = 0
    total: int | None = None
    prompt: int | None = None
    error: str | None = None
    ends: bool = False


class Reading(Protocol):
    """One stream being read."""

    def take(self, event: Event) -> Piece:
        """What the event says. Raises StreamError for what the API has no meaning for."""
        ...


class Dialect(Protocol):
    """One API."""

    @property
    def api(self) -> Api:
        """Whose it is."""
        ...

    @property
    def path(self) -> str:
        """The route that streams."""
        ...

    def body(self, prompt: Prompt, new_tokens: int) -> Mapping[str, Any]:
        """The JSON document that asks for a stream of so many tokens."""
        ...

    def reading(self) -> Reading:
        """A reader for one stream."""
        ...


@dataclass(frozen=True, slots=True)
class TgiDialect:
    """text-generation-inference's own. It has no way to go on past an end token; what it can do is to cut a prompt to a length.

    truncate: the tokens that every prompt is cut to by the server.
    """

    truncate: int | None = None
    api: Api = "tgi"
    path: str = "/generate_stream"

    def body(self, prompt: Prompt, new_tokens: int) -> Mapping[str, Any]:
        """Greedy, with the details that hold the counts."""
        parameters: dict[str, Any] = {"max_new_tokens": new_tokens, "details": True, "do_sample": False}
        if self.truncate is not None:
            parameters["truncate"] = self.truncate
        return {"inputs": prompt, "parameters": parameters}

    def reading(self) -> Reading:
        """Every event is a token."""
        return _TgiReading()


class _TgiReading:
    def take(self, event: Event) -> Piece:
        value = _object(event)
        if "error" in value:
            return Piece(error=f"{value.get('error_type', 'error')}: {value['error']}")
        if not isinstance(value.get("token"), dict):
            raise StreamError(f"an event without a token: {shown(event.data)}")
        details = value.get("details")
        details = details if isinstance(details, dict) else {}
        return Piece(
            tokens=1,
            total=_whole(details.get("generated_tokens")),
            prompt=_whole(details.get("input_length")),
            ends=value.get("generated_text") is not None,
        )


@dataclass(frozen=True, slots=True)
class OpenAIDialect:
    """OpenAI's completions, with the extensions of vLLM and SGLang where the server takes them.

    forces: ask to go on past an end token. counts: ask for the usage with every chunk, without which the tokens of a chunk are unknown.
    """

    model: str
    forces: bool = True
    counts: bool = True
    api: Api = "openai"
    path: str = "/v1/completions"

    def body(self, prompt: Prompt, new_tokens: int) -> Mapping[str, Any]:
        """Greedy."""
        options: dict[str, Any] = {"include_usage": True}
        if self.counts:
            options["continuous_usage_stats"] = True
        asked: dict[str, Any] = {"model": self.model, "prompt": prompt, "max_tokens": new_tokens, "temperature": 0}
        if self.forces:
            asked |= {"ignore_eos": True, "min_tokens": new_tokens}
        return {**asked, "stream": True, "stream_options": options}

    def reading(self) -> Reading:
        """A chunk may hold several tokens."""
        return _OpenAIReading()


@dataclass(slots=True)
class _OpenAIReading:
    seen: int = 0
    finished: bool = False
    usage: Mapping[str, Any] = field(default_factory=dict)

    def take(self, event: Event) -> Piece:
        if event.data.strip() == "[DONE]":
            return Piece(ends=True, total=_whole(self.usage.get("completion_tokens")), prompt=_whole(self.usage.get("prompt_tokens")))
        value = _object(event)
        if value.get("error"):
            error = value["error"]
            return Piece(error=str(error.get("message", error)) if isinstance(error, dict) else str(error))
        usage = value.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        choices = value.get("choices")
        if not isinstance(choices, list):
            raise StreamError(f"a chunk without choices: {shown(event.data)}")
        if not choices:
            return Piece()  # the usage alone
        choice = choices[0] if isinstance(choices[0], dict) else {}
        counted = _whole(usage.get("completion_tokens")) if isinstance(usage, dict) else None
        if counted is not None:
            tokens, self.seen = max(counted - self.seen, 0), max(counted, self.seen)
            return Piece(tokens=tokens)
        # A chunk that only says why the text ended carries no token; any other one has at least one, and how many is not said.
        delta = choice.get("delta")
        text = choice.get("text") or (delta.get("content") if isinstance(delta, dict) else None)
        return Piece(tokens=None if text else 0)


def _object(event: Event) -> Mapping[str, Any]:
    try:
        value = json.loads(event.data)
    except (ValueError, RecursionError):
        raise StreamError(f"an event that is no JSON: {shown(event.data)}") from None
    if not isinstance(value, dict):
        raise StreamError(f"an event that is no object: {shown(event.data)}")
    return value


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
