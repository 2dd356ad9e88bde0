"""GPT-2's alphabet: the printable character that stands for each byte in a byte-level vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_PRINTABLE: Final = frozenset([*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)])
"""Bytes whose Latin-1 character is visible and stands for itself; the others take the code points from 256 on, in order."""

_OTHERS: Final = tuple(b for b in range(256) if b not in _PRINTABLE)

BYTE_TO_CHARACTER: Final[tuple[str, ...]] = tuple(chr(b) if b in _PRINTABLE else chr(256 + _OTHERS.index(b)) for b in range(256))

CHARACTER_TO_BYTE: Final[Mapping[str, int]] = MappingProxyType({c: b for b, c in enumerate(BYTE_TO_CHARACTER)})


def token_bytes(token: str) -> bytes:
    """The bytes that `token` of a byte-level vocabulary stands for.

    A token with any character outside the alphabet (an added token such as "中文") stands for its own UTF-8 bytes.
    """
    try:
        return bytes(CHARACTER_TO_BYTE[c] for c in token)
    except KeyError:
        return token.encode("utf-8")
