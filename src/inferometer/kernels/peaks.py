"""The best of the logits that a program computes, which its launch leaves in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.support import constexpr, kernel, tl
from inferometer.kernels.token_choice import finite, score_of


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of each row and each program's outputs, (rows, programs): the best value, float32, its first output, int32, and the sum of
    exp(value - best), float32. NaN counts as -inf, +inf as the largest float32. Outputs go up with programs."""

    tops: Tensor
    ids: Tensor
    sums: Tensor

    @classmethod
    def of(cls, rows: int, programs: int, device: torch.device) -> Peaks:
        """Uninitialised ones."""
        size = rows, programs
        tops, sums = (torch.empty(size, dtype=torch.float32, device=device) for _ in range(2))
        return cls(tops, torch.empty(size, dtype=torch.int32, device=device), sums)


@kernel()
def peak(value: Any, n: Any, real: Any, at: Any, wanted: Any, tops: Any, ids: Any, sums: Any) -> None:
    """Stores, of each row of value (rows, tile), the best of its elements that are real, its output n, and the sum of the exponentials."""
    score = tl.where(real, score_of(value), float("-inf"))
    top = tl.max(score, 1)
    across = top[:, None]
    tl.store(tops + at, top, mask=wanted)
    tl.store(ids + at, tl.min(tl.where(score == across, n, 2147483647), 1), mask=wanted)
    tl.store(sums + at, tl.sum(tl.exp(score - finite(across)), 1), mask=wanted)


@kernel()
def merged(best: Any, first: Any, total: Any, top: Any, own: Any, mass: Any) -> Any:
    """Lane by lane, the peak of all that was seen and of what comes behind it: its best value, the first place of that, the sum."""
    first = tl.where(top > best, own, first)
    higher = finite(tl.maximum(best, top))
    total = total * tl.exp(best - higher) + mass * tl.exp(top - higher)
    return tl.maximum(best, top), first, total


@kernel()
def row_peak(tops: Any, ids: Any, sums: Any, row: Any, parts: Any, block: constexpr) -> Any:
    """The peak of a row, from those of its parts, `block` of which are looked at together. Of equal ones a lane keeps the first that it
    sees, which is that of the lowest output."""
    lane = tl.arange(0, block)
    best = tl.full([block], float("-inf"), tl.float32)
    first = tl.zeros([block], tl.int32)
    total = tl.zeros([block], tl.float32)
    for start in range(0, parts, block):
        real = start + lane < parts
        at = row * parts + start + lane
        top = tl.load(tops + at, mask=real, other=float("-inf"))
        own = tl.load(ids + at, mask=real, other=0)
        mass = tl.load(sums + at, mask=real, other=0)
        best, first, total = merged(best, first, total, top, own, mass)
    return joined(best, first, total)


@kernel()
def put_choice(
    token_ids: Any, logprobs: Any, seats: Any, newest: Any, row: Any, highest: Any, place: Any, total: Any, seated: constexpr
) -> None:
    """Writes a row's token and its log-probability, from the peak of all tokens."""
    token = place.to(tl.int64)
    logprob = -tl.log(tl.maximum(total, 1.0).to(tl.float64)).to(tl.float32)
    tl.store(token_ids + row, token)
    tl.store(logprobs + row, tl.where(highest > float("-inf"), logprob, float("-inf")))
    if seated:
        tl.store(newest + tl.load(seats + row), token)


@kernel()
def joined(best: Any, first: Any, total: Any) -> Any:
    """The peak of all lanes. Of equal values a lane has kept its first place, the least of which is the first of all."""
    highest = tl.max(best, 0)
    place = tl.min(tl.where(best == highest, first, 2147483647), 0)
    return highest, place, tl.sum(total * tl.exp(best - finite(highest)), 0)
