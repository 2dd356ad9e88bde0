"""The names under which full pages are found again: digests over all tokens up to the end of a page."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many
from hashlib import blake2b

from inferometer.model.spec import DynamicScaling, PositionScheme, Rotary
from inferometer.schedule.request import Request

DIGEST_BYTES = 16
"""Two different beginnings share a digest with probability 2**-64 only among 2**32 of them."""


def root_digest(salt: bytes) -> bytes:
    """What stands before a sequence's first page. salt: what besides the tokens decides the keys."""
    return blake2b(salt, digest_size=DIGEST_BYTES).digest()


def page_digest(before: bytes, token_ids: Many[int]) -> bytes:
    """The digest of a page of `token_ids`. before: the digest of the page before it, `root_digest` for the first."""
    return blake2b(before + array("q", token_ids).tobytes(), digest_size=DIGEST_BYTES).digest()


def prompt_salt(positions: PositionScheme, request: Request) -> bytes:
    """What besides the tokens decides a prompt's keys: its length, where rotary frequencies depend on it."""
    scaling = positions.scaling if isinstance(positions, Rotary) else None
    prompt = len(request.prompt_token_ids)
    if isinstance(scaling, DynamicScaling) and prompt > scaling.original_positions:
        return prompt.to_bytes(8, "little")
    return b""
