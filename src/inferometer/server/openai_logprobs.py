"""Log-probabilities in OpenAI's two shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from inferometer.schedule.completion import TopLogprobs
from inferometer.server.generation import GeneratedToken
from inferometer.text.detokenise import IncrementalDetokeniser
from inferometer.text.token_bytes import TokenBytes
from inferometer.text.tokenizer import Tokenizer

_NONE: Final = -9999.0
"""What OpenAI writes for no probability at all, as JSON has no infinity."""


class TokenNames:
    """Tokens as they are written in log-probabilities: as text, half a character as `bytes:\\xe2\\x80`, without a tokenizer by number."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._bytes = None if tokenizer is None else TokenBytes(tokenizer)
        self._names: dict[int, str] = {}

    def __getitem__(self, token_id: int) -> str:
        """The name of a token."""
        name = self._names.get(token_id)
        if name is None:
            name = self._names[token_id] = self._name(token_id)
        return name

    def data(self, token_id: int) -> list[int] | None:
        """The token's bytes, None without a tokenizer."""
        return None if self._bytes is None else list(self._bytes[token_id])

    def _name(self, token_id: int) -> str:
        if self._bytes is None:
            return f"token_id:{token_id}"
        data = self._bytes[token_id]
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join([f"\\x{byte:02x}" for byte in data])


class Offsets:
    """Where in the text of a sequence each token's text begins, counted in characters from `start`."""

    def __init__(self, tokenizer: Tokenizer | None, start: int) -> None:
        self._text = None if tokenizer is None else IncrementalDetokeniser(tokenizer)
        self._next = start

    def push(self, token_id: int) -> int:
        """The place of the next token."""
        place = self._next
        if self._text is not None:
            self._next += len(self._text.push(token_id))
        return place


def chat_logprobs(tokens: Iterable[GeneratedToken], names: TokenNames) -> dict[str, Any]:
    """Those of some tokens of a chat's answer."""
    return {"content": [{**_entry(each.token_id, each.logprob, names), "top_logprobs": _tops(each.top, names)} for each in tokens]}


def _tops(top: TopLogprobs, names: TokenNames) -> list[dict[str, Any]]:
    return [_entry(token_id, logprob, names) for token_id, logprob in top]


def _entry(token_id: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    return {"token": names[token_id], "logprob": written(logprob), "bytes": names.data(token_id)}


def completion_logprobs(tokens: Sequence[GeneratedToken], offsets: Offsets, names: TokenNames) -> dict[str, list[Any]]:
    """Those of some tokens of a completion. The chosen token is always among the likeliest ones, so that there may be one more."""
    return {
        "tokens": [names[each.token_id] for each in tokens],
        "token_logprobs": [written(each.logprob) for each in tokens],
        "top_logprobs": [_by_name(((each.token_id, each.logprob), *each.top), names) for each in tokens],
        "text_offset": [offsets.push(each.token_id) for each in tokens],
    }


def prompt_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[float | None], offsets: Sequence[int], names: TokenNames
) -> dict[str, list[Any]]:
    """Those of a prompt that is repeated: the first token has none, and no other tokens are looked at."""
    pairs = list(zip(token_ids, logprobs, strict=True))
    return {
        "tokens": [names[token_id] for token_id in token_ids],
        "token_logprobs": [None if logprob is None else written(logprob) for _, logprob in pairs],
        "top_logprobs": [None if logprob is None else _by_name(((token_id, logprob),), names) for token_id, logprob in pairs],
        "text_offset": list(offsets),
    }


def joined(*parts: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Log-probabilities of pieces of a text, one behind the other."""
    return {name: [item for part in parts for item in part[name]] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}


def written(logprob: float) -> float:
    """A log-probability as JSON can hold it."""
    return logprob if math.isfinite(logprob) else _NONE


def _by_name(pairs: Iterable[tuple[int, float]], names: TokenNames) -> dict[str, float]:
    """Of tokens with one name the first, which is the chosen one or the likelier."""
    found: dict[str, float] = {}
    for token_id, logprob in pairs:
        found.setdefault(names[token_id], written(logprob))
    return found
