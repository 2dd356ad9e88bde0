"""Which tokens top-k, top-p and typical-p leave to a row, without sorting it: bounds on its scores.

Every filter keeps scores from a floor on, typical-p also up to a ceiling; where the floor cuts through equal scores, ids decide. The
filters are applied in that order, each to what the one before has left:

- top-k keeps the k best and whatever equals the k-th.
- top-p takes out the least likely tokens that together have at most `tail` = 1 - top_p of the probability, of equal scores those of
  higher ids first. The best token stays.
- typical-p keeps the tokens whose surprise is closest to the entropy, up to probability `mass`, and whatever is as close as the last
  (Meister et al., "Locally Typical Sampling", 2023).

Temperatures decide about probabilities alone: which of two scores is the better is read from the scores as they come. A probability is a
token's weight in fixed point, as in token_choice but beside the best of the whole row, over the sum of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.support import constexpr, early, kernel, tl, usable, wait_for_inputs
from inferometer.kernels.token_choice import BITS, LOWEST, clean, finite, inverse, scores_at, weigh, weight_of
from inferometer.kernels.token_rows import Bounds

BLOCK = 4096
"""Tokens that a program looks at together."""
SELECTED = 1024
"""Best scores that are selected on a CPU before a whole row is sorted: with those of trained models they are nearly always enough."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What each row asks for, on the device of the logits, in any strides; None where no row asks.

    temperatures: float32 (rows,), positive. top_k: int64 (rows,), at most the vocabulary, 0 for all. tails: float32 (rows,), negative for
    all. masses: float32 (rows,), above 1 for all.
    """

    temperatures: Tensor
    top_k: Tensor | None = None
    tails: Tensor | None = None
    masses: Tensor | None = None


def bounds(logits: Tensor, filters: Filters) -> Bounds:
    """The bounds of every row. logits: (rows, vocabulary) of any floating type, the last dimension contiguous, read as in `choose`.

    The kernel looks for the floor as if writing down its bits, two at a time, each time summing up the row below three candidates: a
    sixteen-bit type takes 8 passes over a row for each filter, float32 takes 16. From memory come rows * vocabulary elements, since a
    row stays in the L2 cache; rows do not depend on each other.
    """
    return bounds_triton(logits, filters) if usable(logits.device) else bounds_torch(logits, filters)


def bounds_torch(logits: Tensor, filters: Filters) -> Bounds:
    """The reference."""
    scores, warmth = clean(logits.to(torch.float32)), 1 / filters.temperatures[:, None]
    rows, vocabulary = scores.shape
    floors = torch.full((rows, 1), -torch.inf, device=scores.device)
    last_ids = torch.full((rows, 1), vocabulary, device=scores.device)
    ceilings = torch.full((rows, 1), torch.inf, device=scores.device)
    if filters.top_k is not None:
        k = filters.top_k[:, None]
        floors = top_k_floors(scores, k, int(k.max()) if rows else 0)
        scores = scores.masked_fill(scores < floors, -torch.inf)
    if filters.tails is not None:
        edges, edge_ids = top_p_floors(scores, filters.tails[:, None], warmth)
        floors, last_ids = torch.maximum(floors, edges), torch.where(edges < floors, vocabulary, edge_ids)
        scores = scores.masked_fill(~Bounds(floors[:, 0], last_ids[:, 0], ceilings[:, 0]).keep(scores), -torch.inf)
    if filters.masses is not None:
        lowest, highest = typical_range(scores, filters.masses[:, None], warmth)
        last_ids = torch.where(lowest > floors, vocabulary, last_ids)
        floors, ceilings = torch.maximum(lowest, floors), highest
    return Bounds(floors.squeeze(1), last_ids.squeeze(1).to(torch.int32), ceilings.squeeze(1))


def top_k_floors(scores: Tensor, k: Tensor, largest: int) -> Tensor:
    """The k-th best score of each row, -inf where k is 0. scores: clean, float32 (rows, vocabulary). k: int64 (rows, 1) up to `largest`."""
    if not largest:
        return torch.full_like(k, -torch.inf, dtype=torch.float32)
    values = scores.topk(largest, dim=-1).values
    return values.gather(-1, (k - 1).clamp_(min=0)).masked_fill_(k == 0, -torch.inf)


def top_p_floors(scores: Tensor, tail: Tensor, warmth: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """Where top-p cuts: floors, float32, and the last ids of scores at them, int64, both (rows, 1). warmth: 1 / temperature.

    scores: clean, float32 (rows, vocabulary). tail: float32 (rows, 1).
    """
    best = scores.amax(-1, keepdim=True)
    total = weigh((scores - best.clamp(min=LOWEST)).mul_(warmth), torch.zeros_like(best)).sum(-1, keepdim=True)
    for count in _selections(scores):
        values = scores.topk(count, dim=-1).values if count < scores.shape[-1] else scores.sort(dim=-1, descending=True).values
        weights = weigh((values - best.clamp(min=LOWEST)).mul_(warmth), torch.zeros_like(best))
        # What remains from each token on, itself included.
        rest = _share(total - weights.cumsum(-1) + weights, total)
        kept = (~(rest <= tail)).sum(-1, keepdim=True).clamp_(min=1)
        if count == scores.shape[-1] or bool((kept < count).all()):
            break
    floors = values.gather(-1, kept - 1)
    wanted = kept - (values > floors).sum(-1, keepdim=True)
    return floors, _last_ids(scores == floors, wanted)


def typical_range(scores: Tensor, mass: Tensor, warmth: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """The least and the greatest score that typical-p keeps, float32 (rows, 1) each. Arguments as for top_p_floors.

    A token's surprise is its distance to the best, plus a number that all have: the entropy is the mean distance, plus that number.
    """
    best = scores.amax(-1, keepdim=True).clamp_(min=LOWEST)
    distance = (best - scores).mul_(warmth)
    weights = weigh(-distance, torch.zeros_like(best))
    total = weights.sum(-1, keepdim=True)
    moments = torch.where(weights > 0, (-distance).exp_().mul_(2.0**BITS).mul_(distance), 0.0).to(torch.int64)
    mean = _share(moments.sum(-1, keepdim=True), total).nan_to_num_(nan=0.0)
    oddness = (distance - mean).abs_()
    for count in _selections(scores):
        if count < scores.shape[-1]:
            ordered, ids = oddness.topk(count, dim=-1, largest=False)
        else:
            ordered, ids = oddness.sort(dim=-1)
        reached = _share(weights.gather(-1, ids).cumsum(-1), total)
        last = (reached < mass).sum(-1, keepdim=True)
        if count == scores.shape[-1] or bool((last < count).all()):
            break
    kept = oddness <= ordered.gather(-1, last.clamp_(max=scores.shape[-1] - 1))
    lowest = torch.where(kept, scores, torch.inf).amin(-1, keepdim=True)
    return lowest, torch.where(kept, scores, -torch.inf).amax(-1, keepdim=True)


def _selections(scores: Tensor) -> tuple[int, ...]:
    """How many of each row to put in order, one after another until it was enough. To know that, a GPU would have to be waited for."""
    vocabulary = scores.shape[-1]
    few = scores.device.type == "cpu" and vocabulary > 2 * SELECTED and bool(scores.numel())
    return (SELECTED, vocabulary) if few else (vocabulary,)


def _share(part: Tensor, total: Tensor) -> Tensor:
    """Fixed point over fixed point, float32; NaN of nothing."""
    return (part.to(torch.float64) / total.to(torch.float64)).to(torch.float32)


def _last_ids(equal: Tensor, wanted: Tensor) -> Tensor:
    """The id of the `wanted`-th true of each row, int64 (rows, 1)."""
    if equal.device.type == "cpu" and bool((equal.sum(-1, keepdim=True) == wanted).all()):
        return torch.full_like(wanted, equal.shape[-1])
    return (equal.cumsum(-1, dtype=torch.int32) < wanted).sum(-1, keepdim=True)


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
def _ratio(part: Any, total: Any) -> Any:
    """Fixed point over fixed point, float32."""
    return (part.to(tl.float64) / total.to(tl.float64)).to(tl.float32)


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
def _weights(score: Any, floor: Any, best: Any, warmth: Any, bits: constexpr) -> Any:
    """Of scores from the floor on."""
    return tl.where(score >= floor, weight_of((score - best) * warmth, bits), 0)


@kernel()
def _tail(
    logits: Any, vocabulary: Any, floor: Any, best: Any, warmth: Any, total: Any, tail: Any, unused: constexpr, block: constexpr,
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
            own, weight = _key(score, unused), _weights(score, floor, best, warmth, bits)
            one += tl.where(own < key + step, weight, 0)
            two += tl.where(own < key + step + step, weight, 0)
            three += tl.where(own < key + step + step + step, weight, 0)
        first, second, third = _ratio(tl.sum(one, 0), total), _ratio(tl.sum(two, 0), total), _ratio(tl.sum(three, 0), total)
        key = _higher(key, step, first <= tail, second <= tail, third <= tail)
        step = step >> 2
    return key


@kernel()
def _oddness(score: Any, best: Any, warmth: Any, mean: Any) -> Any:
    """int32 in the order of how far a surprise is from the entropy."""
    return tl.abs((best - score) * warmth - mean).to(tl.int32, bitcast=True) ^ -2147483648


@kernel()
def _odd(
    logits: Any, vocabulary: Any, floor: Any, last: Any, best: Any, warmth: Any, mean: Any, total: Any, mass: Any, block: constexpr,
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
            own, weight = _oddness(score, best, warmth, mean), _weights(score, floor, best, warmth, bits)
            one += tl.where(own < key + step, weight, 0)
            two += tl.where(own < key + step + step, weight, 0)
            three += tl.where(own < key + step + step + step, weight, 0)
        first, second, third = _ratio(tl.sum(one, 0), total), _ratio(tl.sum(two, 0), total), _ratio(tl.sum(three, 0), total)
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
                sums += _weights(score, floor, best, warmth, bits)
            total = tl.sum(sums, 0)
            key = _tail(logits, vocabulary, floor, best, warmth, total, tail, unused, block, bits)
            key = tl.minimum(key, _key(best, unused))
            edge = _score(key, unused)
            lower = tl.zeros([block], tl.int64)
            equals = tl.zeros([block], tl.int32)
            for start in range(0, vocabulary, block):
                score = scores_at(logits, start, vocabulary, logits, logits, logits, False, block)
                lower += tl.where(score < edge, _weights(score, floor, best, warmth, bits), 0)
                equals += (score == edge).to(tl.int32)
            below = tl.sum(lower, 0)
            equal = tl.sum(equals, 0)
            # Of those at the edge, as many as the tail still takes.
            each = weight_of((edge - best) * warmth, bits)
            out = tl.full([], 0, tl.int32)
            step = tl.full([], 1 << 24, tl.int32)
            for _ in range(25):
                more = out + step
                out = tl.where((more < equal) & (_ratio(below + more * each, total) <= tail), more, out)
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
            one: tl.constexpr = 1 << bits
            for start in range(0, vocabulary, block):
                score = scores_at(logits, start, vocabulary, logits, logits, logits, False, block)
                score = _left(score, start, floor, last, block)
                weight = _weights(score, floor, best, warmth, bits)
                distance = (best - score) * warmth
                sums += weight
                products += tl.where(weight > 0, tl.exp(-distance) * one * distance, 0.0).to(tl.int64)
            total = tl.sum(sums, 0)
            mean = _ratio(tl.sum(products, 0), total)
            key = _odd(logits, vocabulary, floor, last, best, warmth, mean, total, mass, block, bits)
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
