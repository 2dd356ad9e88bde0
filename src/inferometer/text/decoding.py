"""How the texts of tokens join into a text, one token at a time.

Each stage below is the streaming form of one decoder of the tokenizers library: whatever the tokens, its outputs concatenate to
what the library's decoder makes of all tokens at once, and nothing is given out that a later token could still change.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from inferometer.text.byte_level import token_bytes

_REPLACEMENT: Final = "\ufffd"


class Stage(Protocol):
    """Takes tokens, gives tokens. A stage may hold something back; `end` gives it out."""

    def feed(self, token: str) -> list[str]: ...

    def end(self) -> list[str]: ...


class _Each:
    """Changes every token by itself. `change` receives whether the token is the first."""

    def __init__(self, change: Callable[[str, bool], str]) -> None:
        self._change = change
        self._first = True

    def feed(self, token: str) -> list[str]:
        first, self._first = self._first, False
        return [self._change(token, first)]

    def end(self) -> list[str]:
        return []


class _ByteLevel:
    """Tokens are bytes in GPT-2's alphabet; a character is given out when its last byte has come."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: str) -> list[str]:
        return [self._utf8.decode(token_bytes(token))]

    def end(self) -> list[str]:
        return [self._utf8.decode(b"", final=True)]


class _ByteFallback:
    """Tokens such as <0xE2> are bytes.

    A run of them is UTF-8 as a whole or becomes one U+FFFD a byte, so it is held back until it ends.
    """

    _BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")

    def __init__(self) -> None:
        self._run = bytearray()

    def feed(self, token: str) -> list[str]:
        if byte := self._BYTE.fullmatch(token):
            self._run.append(int(byte[1], 16))
            return []
        return [*self.end(), token]

    def end(self) -> list[str]:
        run, self._run = self._run, bytearray()
        if not run:
            return []
        try:
            return [run.decode("utf-8")]
        except UnicodeDecodeError:
            return [_REPLACEMENT] * len(run)


class _StripStart:
    """Takes up to `limit` times the character `content` off the start of all tokens together."""

    def __init__(self, content: str, limit: int) -> None:
        self._content = content
        self._left = limit

    def feed(self, token: str) -> list[str]:
        while self._left and token:
            if not token.startswith(self._content):
                self._left = 0
                break
            token = token[1:]
            self._left -= 1
        return [token]

    def end(self) -> list[str]:
        return []


class Decoding:
    """A chain of stages as one stream of text."""

    def __init__(self, stages: list[Stage]) -> None:
        self._stages = stages

    def push(self, token: str) -> str:
        """The text that is certain once `token` has come."""
        return self._run([token], 0)

    def finish(self) -> str:
        """The text that was held back."""
        return "".join(self._run(stage.end(), i + 1) for i, stage in enumerate(self._stages))

    def _run(self, tokens: list[str], start: int) -> str:
        for stage in self._stages[start:]:
            tokens = [out for token in tokens for out in stage.feed(token)]
        return "".join(tokens)


def decoding(decoder: Mapping[str, Any] | None) -> Decoding | None:
    """The streaming form of `decoder` (as the tokenizers library serialises it), None where there is none that is exact."""
    if decoder is None:
        return Decoding([_Each(lambda token, first: token if first else f" {token}")])
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    stages: list[Stage] = []
    joined = False  # whether the tokens have become one text, of which a stage sees fragments
    for part in parts:
        if part["type"] == "Fuse":
            joined = True
            continue
        stage = _on_text(part) if joined else _on_tokens(part)
        if stage is None:
            return None
        stages.append(stage)
        joined = joined or part["type"] == "ByteLevel"
    return Decoding(stages)


def _on_text(part: Mapping[str, Any]) -> Stage | None:
    if part["type"] == "Strip" and part["stop"] == 0:
        return _StripStart(part["content"], part["start"])
    if part["type"] == "Replace" and len(part["pattern"].get("String", "")) == 1:
        return _replace(part)
    return None


def _on_tokens(part: Mapping[str, Any]) -> Stage | None:
    kind = part["type"]
    if kind == "ByteLevel":
        return _ByteLevel()
    if kind == "ByteFallback":
        return _ByteFallback()
    if kind == "Replace" and part["pattern"].get("String"):
        return _replace(part)
    if kind == "Strip" and part["stop"] == 0:
        return _strip_each(part["content"], part["start"])
    if kind == "WordPiece":
        return _word_piece(part["prefix"], part["cleanup"])
    if kind == "Metaspace":
        return _metaspace(part["replacement"], part["prepend_scheme"])
    return None


def _replace(part: Mapping[str, Any]) -> Stage:
    pattern, content = part["pattern"]["String"], part["content"]
    return _Each(lambda token, first: token.replace(pattern, content))


def _strip_each(content: str, limit: int) -> Stage:
    def strip(token: str, first: bool) -> str:
        kept = token.lstrip(content)
        return token[min(limit, len(token) - len(kept)) :]

    return _Each(strip)


def _metaspace(space: str, prepend_scheme: str) -> Stage:
    def spaced(token: str, first: bool) -> str:
        return token.replace(space, "" if first and prepend_scheme != "never" else " ")

    return _Each(spaced)


_CLEANUP: Final = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
    (" 'm", "'m"), (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def _word_piece(prefix: str, cleanup: bool) -> Stage:
    def spaced(token: str, first: bool) -> str:
        if not first:
            token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
        if cleanup:
            for written, read in _CLEANUP:
                token = token.replace(written, read)
        return token

    return _Each(spaced)
