"""Which tokens top-k, top-p and typical-p leave to a row, without sorting it: bounds on its scores.

Every filter keeps scores from a floor on, typical-p also up to a ceiling; where the floor cuts through equal scores, ids decide. The
filters are applied in that order, each to what the one before has left:

- top-k keeps the k best and whatever equals the k-th.
- top-p takes out the least likely tokens that together have at most `tail` = 1 - top_p of the probability, of equal scores those of
  higher ids first. The best token stays.
- typical-p keeps the tokens whose surprise is closest to the entropy, up to probability `mass`, and whatever is as close as the last
  (Meister et al., "Locally Typical Sampling", 2023).

Temperatures decide about probabilities alone: which of two scores is the better is read from the scores as they come. A probability is
rounded to float32, as a softmax gives it, before probabilities are added up, in fixed point.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.support import constexpr, early, kernel, tl, usable, wait_for_inputs
from inferometer.kernels.token_choice import BITS, inverse, scores_at, weight_of
from inferometer.kernels.token_filters import Filters, bounds_torch
from inferometer.kernels.token_rows import Bounds

BLOCK = 4096
"""Tokens that a program looks at together."""


def bounds(logits: Tensor, filters: Filters) -> Bounds:
    """The bounds of every row. logits: (rows, vocabulary) of any floating type, the last dimension contiguous, read as in `choose`.

    The kernel looks for the floor as if writing down its bits, two at a time, each time summing up the row below three candidates: a
    sixteen-bit type takes 8 passes over a row for each filter, float32 takes 16. From memory come rows * vocabulary elements, since a
    row stays in the L2 cache; rows do not depend on each other.
    """
    return bounds_triton(logits, filters) if usable(logits.device) else bounds_torch(logits, filters)


def bounds_triton(logits: Tensor, filters: Filters) -> Bounds:
    """The kernel: a program for each row."""
    rows, vocabulary = logits.shape
    device = logits.device
    floors, ceilings = (torch.empty(rows, dtype=torch.float32, device=device) for _ in range(2))
    found = Bounds(floors, torch.empty(rows, dtype=torch.int32, device=device), ceilings)
    if not rows:
        return found
    assert logits.stride(1) == 1
    parameters = [filters.temperatures] + [floors if part is None else part for part in (filters.top_k, filters.tails, filters.masses)]
    # Bits that a type leaves zero when it is widened to float32.
    unused = {torch.bfloat16: 16, torch.float16: 12}.get(logits.dtype, 0)
    _bounds.launch(
        (rows,), logits, *parameters, found.floors, found.last_ids, found.ceilings, vocabulary, logits.stride(0),
        *[part.stride(0) for part in parameters], counted=filters.top_k is not None, tailed=filters.tails is not None,
        typical=filters.masses is not None, unused=unused, block=BLOCK, bits=BITS, num_warps=16, **early(device),
    )  # fmt: skip
    return found


@kernel()
def _key(score: Any, unused: constexpr) -> Any:
    """int32 in the order of the scores."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> unused


@kernel()
def _score(key: Any, unused: constexpr) -> Any:
    """The score of a key."""
    low: tl.constexpr = (1 << unused) - 1
    bits = (key << unused) | tl.where(key < 0, low, 0)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@kernel()
def _floated(share: Any, bits: constexpr) -> Any:
    """Fixed point as float32."""
    one: tl.constexpr = 1 << bits
    return (share.to(tl.float64) / one).to(tl.float32)


@kernel()
def _unit_of(total: Any, bits: constexpr) -> Any:
    """What makes probabilities in fixed point of exponentials. total: the sum of these in fixed point."""
    one: tl.constexpr = 1 << bits
    return (one / total.to(tl.float64) * one).to(tl.float32)


@kernel()
def _share_of(score: Any, floor: Any, best: Any, warmth: Any, unit: Any) -> Any:
    """Probability in fixed point, of scores from the floor on."""
    return tl.where(score >= floor, tl.exp(-((best - score) * warmth)) * unit, 0.0).to(tl.int64)


@kernel()
def _higher(key: Any, step: Any, first: Any, second: Any, third: Any) -> Any:
    """The key with its next two bits, from which of its three candidates still hold."""
    key = tl.where(first, key + step, key)
    key = tl.where(second, key + step, key)
    return tl.where(third, key + step, key)


@kernel()
def _kth(logits: Any, vocabulary: Any, k: Any, unused: constexpr, block: constexpr) -> Any:
    """The greatest key that k scores reach."""
    key = tl.full([], -(1 << (31 - unused)), tl.int32)
    step = tl.full([], 1 << (30 - unused), tl.int32)
    for _ in range((32 - unused) // 2):
        one = tl.zeros([block], tl.int32)
        two = tl.zeros([block], tl.int32)
        three = tl.zeros([block], tl.int32)
        for start in range(0, vocabulary, block):
            own = _key(scores_at(logits, start, vocabulary, logits, logits, logits, False, block), unused)
            one += (own >= key + step).to(tl.int32)
            two += (own >= key + step + step).to(tl.int32)
            three += (own >= key + step + step + step).to(tl.int32)
        key = _higher(key, step, tl.sum(one, 0) >= k, tl.sum(two, 0) >= k, tl.sum(three, 0) >= k)
        step = step >> 2
    return key


@kernel()
def _tail(
    logits: Any, vocabulary: Any, floor: Any, best: Any, warmth: Any, unit: Any, tail: Any, unused: constexpr, block: constexpr,
    bits: constexpr,
) -> Any:  # fmt: skip
    """The greatest key below which there is at most the tail."""
    key = tl.full([], -(1 << (31 - unused)), tl.int32)
    step = tl.full([], 1 << (30 - unused), tl.int32)
    for _ in range((32 - unused) // 2):
        one = tl.zeros([block], tl.int64)
        two = tl.zeros([block], tl.int64)
        three = tl.zeros([block], tl.int64)
        for start in range(0, vocabulary, block):
            score = scores_at(logits, start, vocabulary, logits, logits, logits, False, block)
            own, share = _key(score, unused), _share_of(score, floor, best, warmth, unit)
            one += tl.where(own < key + step, share, 0)
            two += tl.where(own < key + step + step, share, 0)
            three += tl.where(own < key + step + step + step, share, 0)
        first, second, third = _floated(tl.sum(one, 0), bits), _floated(tl.sum(two, 0), bits), _floated(tl.sum(three, 0), bits)
        key = _higher(key, step, first <= tail, second <= tail, third <= tail)
        step = step >> 2
    return key


@kernel()
def _oddness(score: Any, best: Any, warmth: Any, mean: Any) -> Any:
    """int32 in the order of how far a surprise is from the entropy."""
    return tl.abs((best - score) * warmth - mean).to(tl.int32, bitcast=True) ^ -2147483648


@kernel()
def _odd(
    logits: Any, vocabulary: Any, floor: Any, last: Any, best: Any, warmth: Any, mean: Any, unit: Any, mass: Any, block: constexpr,
    bits: constexpr,
) -> Any:  # fmt: skip
    """The oddness with which the mass is reached."""
    key = tl.full([], -(1 << 31), tl.int32)
    step = tl.full([], 1 << 30, tl.int32)
    for _ in range(16):
        one = tl.zeros([block], tl.int64)
        two = tl.zeros([block], tl.int64)
        three = tl.zeros([block], tl.int64)
        for start in range(0, vocabulary, block):
            score = scores_at(logits, start, vocabulary, floor, last, floor, False, block)
            score = _left(score, start, floor, last, block)
            own, share = _oddness(score, best, warmth, mean), _share_of(score, floor, best, warmth, unit)
            one += tl.where(own < key + step, share, 0)
            two += tl.where(own < key + step + step, share, 0)
            three += tl.where(own < key + step + step + step, share, 0)
        first, second, third = _floated(tl.sum(one, 0), bits), _floated(tl.sum(two, 0), bits), _floated(tl.sum(three, 0), bits)
        key = _higher(key, step, first < mass, second < mass, third < mass)
        step = step >> 2
    return key


@kernel()
def _left(score: Any, start: Any, floor: Any, last: Any, block: constexpr) -> Any:
    """Scores of a block, -inf where the filters before have taken them out."""
    i = start + tl.arange(0, block)
    return tl.where((score > floor) | ((score == floor) & (i <= last)), score, float("-inf"))


@kernel("vocabulary")
def _bounds(
    logits: Any, temperatures: Any, top_k: Any, tails: Any, masses: Any, floors: Any, last_ids: Any, ceilings: Any, vocabulary: Any,
    row_stride: Any, temperature_stride: Any, k_stride: Any, tail_stride: Any, mass_stride: Any, counted: constexpr, tailed: constexpr,
    typical: constexpr, unused: constexpr, block: constexpr, bits: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One row."""
    wait_for_inputs(early)
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    warmth = inverse(temperatures + row * temperature_stride)
    floor = tl.full([], float("-inf"), tl.float32)
    last = tl.full([], 2147483647, tl.int32)
    ceiling = tl.full([], float("inf"), tl.float32)
    if counted:
        k = tl.load(top_k + row * k_stride)
        if k > 0:
            floor = _score(_kth(logits, vocabulary, k, unused, block), unused)
    if tailed or typical:
        tail = tl.full([], -1.0, tl.float32)
        mass = tl.full([], 2.0, tl.float32)
        if tailed:
            tail = tl.load(tails + row * tail_stride)
        if typical:
            mass = tl.load(masses + row * mass_stride)
        best = tl.full([], float("-inf"), tl.float32)
        if (tail >= 0) | (mass <= 1):
            highest = tl.full([block], float("-inf"), tl.float32)
            for start in range(0, vocabulary, block):
                highest = tl.maximum(highest, scores_at(logits, start, vocabulary, logits, logits, logits, False, block))
            best = tl.max(highest, 0)
        if (tail >= 0) & (best > float("-inf")):
            sums = tl.zeros([block], tl.int64)
            for start in range(0, vocabulary, block):
                score = scores_at(logits, start, vocabulary, logits, logits, logits, False, block)
                sums += tl.where(score >= floor, weight_of((score - best) * warmth, bits), 0)
            unit = _unit_of(tl.sum(sums, 0), bits)
            key = _tail(logits, vocabulary, floor, best, warmth, unit, tail, unused, block, bits)
            key = tl.minimum(key, _key(best, unused))
            edge = _score(key, unused)
            lower = tl.zeros([block], tl.int64)
            equals = tl.zeros([block], tl.int32)
            for start in range(0, vocabulary, block):
                score = scores_at(logits, start, vocabulary, logits, logits, logits, False, block)
                lower += tl.where(score < edge, _share_of(score, floor, best, warmth, unit), 0)
                equals += (score == edge).to(tl.int32)
            below = tl.sum(lower, 0)
            equal = tl.sum(equals, 0)
            # Of those at the edge, as many as the tail still takes.
            each = _share_of(edge, floor, best, warmth, unit)
            out = tl.full([], 0, tl.int32)
            step = tl.full([], 1 << 24, tl.int32)
            for _ in range(25):
                more = out + step
                out = tl.where((more < equal) & (_floated(below + more * each, bits) <= tail), more, out)
                step = step >> 1
            if out > 0:
                wanted = equal - out
                seen = tl.full([], 0, tl.int32)
                for start in range(0, vocabulary, block):
                    here = (scores_at(logits, start, vocabulary, logits, logits, logits, False, block) == edge).to(tl.int32)
                    i = start + tl.arange(0, block)
                    count = seen + tl.cumsum(here, 0)
                    last = tl.minimum(last, tl.min(tl.where((here > 0) & (count == wanted), i, 2147483647), 0))
                    seen += tl.sum(here, 0)
            floor = tl.maximum(floor, edge)
        if (mass <= 1) & (best > float("-inf")):
            sums = tl.zeros([block], tl.int64)
            products = tl.zeros([block], tl.int64)
            for start in range(0, vocabulary, block):
                score = scores_at(logits, start, vocabulary, logits, logits, logits, False, block)
                sums += weight_of((_left(score, start, floor, last, block) - best) * warmth, bits)
            unit = _unit_of(tl.sum(sums, 0), bits)
            for start in range(0, vocabulary, block):
                score = scores_at(logits, start, vocabulary, logits, logits, logits, False, block)
                score = _left(score, start, floor, last, block)
                distance = (best - score) * warmth
                some = _share_of(score, floor, best, warmth, unit) > 0
                products += tl.where(some, tl.exp(-distance) * unit * distance, 0.0).to(tl.int64)
            mean = _floated(tl.sum(products, 0), bits)
            key = _odd(logits, vocabulary, floor, last, best, warmth, mean, unit, mass, block, bits)
            least = tl.full([block], float("inf"), tl.float32)
            most = tl.full([block], float("-inf"), tl.float32)
            for start in range(0, vocabulary, block):
                score = scores_at(logits, start, vocabulary, logits, logits, logits, False, block)
                score = _left(score, start, floor, last, block)
                kept = _oddness(score, best, warmth, mean) <= key
                least = tl.minimum(least, tl.where(kept, score, float("inf")))
                most = tl.maximum(most, tl.where(kept, score, float("-inf")))
            lowest = tl.min(least, 0)
            if lowest < float("inf"):  # as it is, unless the compiler has rounded an oddness in two ways
                last = tl.where(lowest > floor, 2147483647, last)
                floor = tl.maximum(floor, lowest)
                ceiling = tl.max(most, 0)
    tl.store(floors + row, floor)
    tl.store(last_ids + row, last)
    tl.store(ceilings + row, ceiling)
