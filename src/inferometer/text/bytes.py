"""The byte tokenizer: one token a byte. It needs no files, so every model can be fed text with it."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from inferometer.text.byte_level import BYTE_TO_CHARACTER
from inferometer.text.tokenizer import Tokenizer, refuse_surrogates

_NO_BYTE: Final = 0xFF
"""Never part of UTF-8, so it always decodes to one U+FFFD of its own."""


class ByteTokenizer(Tokenizer):
    """Ids 0 to 255 are the bytes of the text in UTF-8; there are no special tokens.

    A model with a larger vocabulary may generate other ids: each decodes to one U+FFFD, as an invalid byte does.
    """

    def __init__(self) -> None:
        self.vocabulary_size = 256
        self.bos_token_id = None
        self.eos_token_ids = ()
        self.chat_template = None
        self.special_tokens = MappingProxyType({})
        self.decoder = MappingProxyType({"type": "ByteLevel"})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        refuse_surrogates(text)
        return list(text.encode("utf-8"))

    def spans(self, text: str, *, special: bool = True) -> list[tuple[int, int, int]]:
        refuse_surrogates(text)
        return [(byte, place, place + 1) for place, character in enumerate(text) for byte in character.encode("utf-8")]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return bytes(_byte(i) for i in ids).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        return False

    def token(self, token_id: int) -> str | None:
        return BYTE_TO_CHARACTER[_byte(token_id)]


def _byte(token_id: int) -> int:
    return token_id if 0 <= token_id <= 0xFF else _NO_BYTE
