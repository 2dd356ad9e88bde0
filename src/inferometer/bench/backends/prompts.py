"""Prompts of an exact number of tokens: the same for every backend, different for every row of a batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from inferometer.errors import UserError
from inferometer.hardware.host_memory import free_host_bytes

FILLER = """\
The harbour wakes before the town does. Gulls argue over the quay while the first boats come in, low in the water, and the
weighing scale behind the shed creaks under crate after crate. Someone writes the figures on a slate: eleven of cod, four of
ling, a half of something nobody can name. By seven the fog has thinned and the bakery sends its smell downhill; by eight the
ferry sounds its horn twice, as it has on every morning except two. Children count the steps from the chapel to the pier and
never agree on the number. At noon the tide turns, the ropes slacken, and the harbour master, who has measured everything here
at least once, walks the wall with his hands behind his back, checking that the sea is where he left it.
"""

# A reference in a Python list.
_BYTES_PER_ID = 8

# A prime far from the filler's length in tokens of any tokenizer, so that neighbouring rows start at unrelated words.
_STRIDE = 37


class Encoder(Protocol):
    """What prompts need of a tokenizer."""

    def encode(self, text: str, *, special: bool = True) -> list[int]: ...


def text_prompts(tokenizer: Encoder, batch_size: int, length: int, vocabulary: int) -> list[list[int]]:
    """`batch_size` rows of exactly `length` tokens of the filler text, each row begun at another word.

    Raises UserError where the tokenizer gives an id that the model has no embedding for, MemoryError as `check_room` does.
    """
    check_room(batch_size, length)
    tokens = tokenizer.encode(FILLER, special=False)
    if not tokens or max(tokens) >= vocabulary:
        raise UserError(f"--tokenizer gives token ids beyond the model's vocabulary of {vocabulary}; name the model's own, or byte")
    return [[tokens[(row * _STRIDE + i) % len(tokens)] for i in range(length)] for row in range(batch_size)]


def random_prompts(seed: int, batch_size: int, length: int, vocabulary: int) -> list[list[int]]:
    """`batch_size` rows of `length` uniformly random token ids; a row depends on the seed and its number alone.

    Raises MemoryError as `check_room` does.
    """
    check_room(batch_size, length)
    return [random.Random(f"{seed}/{row}").choices(range(vocabulary), k=length) for row in range(batch_size)]


def told_apart(prompts: Sequence[Sequence[int]], vocabulary: int) -> list[list[int]]:
    """The prompts with the number of their row, in digits of that base, for their first four tokens: no two begin alike."""

    def numbered(row: int, prompt: Sequence[int]) -> list[int]:
        digits = [row // vocabulary**place % vocabulary for place in range(min(4, len(prompt)))]
        return [*digits, *prompt[len(digits) :]]

    return [numbered(row, prompt) for row, prompt in enumerate(prompts)]


def check_room(batch_size: int, length: int) -> None:
    """Raises MemoryError where the token ids alone would not fit into the host's memory, instead of filling it for minutes."""
    needed, free = batch_size * length * _BYTES_PER_ID, free_host_bytes()
    if needed > free:
        gib = 2**30
        raise MemoryError(f"{batch_size} x {length} token ids need {needed // gib} GiB of host memory, {free / gib:.1f} GiB are free")
