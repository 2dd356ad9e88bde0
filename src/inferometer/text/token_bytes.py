"""What each token stands for by itself: bytes, as half of a character is no text."""

from __future__ import annotations

import re
from typing import Final

from inferometer.text.byte_level import token_bytes
from inferometer.text.decoding import decoding
from inferometer.text.tokenizer import Tokenizer

_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The bytes that tokens of `tokenizer` add to a text, in the middle of one. Each is looked up once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        decoder = tokenizer.decoder or {}
        kinds = {part["type"] for part in (decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder] if decoder else [])}
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._found: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """The bytes of a token: a special token's are its name, and of an id without a token there are none."""
        found = self._found.get(token_id)
        if found is None:
            found = self._found[token_id] = self._look_up(token_id)
        return found

    def _look_up(self, token_id: int) -> bytes:
        token = self._tokenizer.token(token_id)
        if token is None:
            return b""
        if self._tokenizer.is_special(token_id):
            return token.encode("utf-8")
        if self._byte_level:
            return token_bytes(token)
        if self._byte_fallback and (byte := _BYTE.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        stages = decoding(self._tokenizer.decoder)
        if stages is None:
            return self._tokenizer.decode([token_id], skip_special=False).encode("utf-8")
        # Behind another token: the first one of a text loses its space with some tokenizers.
        before = stages.push("a")
        return (before + stages.push(token) + stages.finish()).removeprefix("a").encode("utf-8")
