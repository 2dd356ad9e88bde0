"""The search for the largest batch that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LARGEST: Final = 1 << 20
"""Batches beyond this are not looked for."""


def next_batch(known: Mapping[int, bool], guess: int | None = None) -> int | None:
    """The batch size to try next, given which of those tried fit; None once the edge is known to a 64th, or cannot be.

    guess: where the edge is expected. Below 128 sequences the edge is exact. A batch that fits above one that does not is not looked at:
    the edge is the least that does not fit.
    """
    over = min((size for size, fits in known.items() if not fits), default=None)
    under = max((size for size, fits in known.items() if fits and (over is None or size < over)), default=None)
    if over is None:
        if under is None or under >= LARGEST:
            return None if under is not None else 1
        return min(guess if guess is not None and guess > under else 2 * under, LARGEST)
    if under is None:
        return None if over == 1 else _within(guess, 0, over) or over // 2
    if over - under <= max(1, under // 64):
        return None
    return _within(guess, under, over) or (under + over) // 2


def _within(guess: int | None, under: int, over: int) -> int | None:
    return guess if guess is not None and under < guess < over else None
