"""Prompts for a server: of a number of tokens, every one different."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from inferometer.bench.backends.prompts import FILLER
from inferometer.bench.serving.dialect import Prompt
from inferometer.errors import UserError

# The same at the start of all, so that what follows stands behind a space in each of them.
_FIRST = "The"
_WORDS = tuple(dict.fromkeys("".join(letter if letter.isalpha() else " " for letter in FILLER.lower()).split()))
# Each is mostly a token of its own, behind whatever stands before it.
_MARKS = ".;!?:,.;!?:,"


class Codec(Protocol):
    """What prompts need of a tokenizer."""

    def encode(self, text: str, *, special: bool = True) -> list[int]: ...


def words(seed: str, place: int, count: int, pad: str = "") -> str:
    """A text of `count` words, in an order that the seed and the prompt's place decide; the same words for every place."""
    chosen = [_WORDS[i % len(_WORDS)] for i in range(max(count - 1, 0))]
    random.Random(f"{seed}/{place}").shuffle(chosen)
    return " ".join([_FIRST, *chosen]) + pad


def token_prompts(codec: Codec, seed: str, count: int, length: int) -> list[list[int]]:
    """`count` prompts of exactly `length` token ids that the tokenizer knows. Raises UserError for one that knows no word."""
    known = sorted(set(codec.encode(FILLER, special=False)))
    if not known:
        raise UserError("--tokenizer makes no tokens of a text; name the served model's own")
    return [random.Random(f"{seed}/{place}").choices(known, k=length) for place in range(count)]


def cut_prompts(seed: str, count: int, length: int) -> list[str]:
    """`count` texts of at least `length` tokens, for a server that cuts them to it: no word is less than one."""
    return [words(seed, place, length + 1) for place in range(count)]


async def fitted_prompts(count_tokens: Callable[[str], Awaitable[int]], seed: str, count: int, length: int) -> Sequence[Prompt]:
    """`count` texts of `length` tokens each by the server's own count, or as near below as words and a few marks come.

    Words in another order are the same tokens to a tokenizer that splits at spaces; what the server counts is recorded with the answers.
    """
    low, high = 1, length + 1  # words; none is less than a token
    while high - low > 1:
        middle = (low + high) // 2
        if await count_tokens(words(seed, 0, middle)) <= length:
            low = middle
        else:
            high = middle
    best = ""
    for marks in range(len(_MARKS) + 1):
        found = await count_tokens(words(seed, 0, low, _MARKS[:marks]))
        if found <= length:
            best = _MARKS[:marks]
        if found >= length:
            break
    return [words(seed, place, low, best) for place in range(count)]
