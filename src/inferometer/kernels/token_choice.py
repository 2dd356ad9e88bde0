"""Choosing a token a row from its logits: the best, or one drawn by the inverse of the cumulative distribution, in one pass.

How a token is drawn, on every device. The vocabulary, in its order, is cut into blocks of BLOCK. In its block a token weighs
exp((score - the block's best) / temperature), in fixed point of BITS fraction bits; a block weighs the sum of its tokens times
exp((its best - the row's best) / temperature). Of a number u in [0, 1) the drawn block is the first up to which the blocks weigh more
than u times all of them, and the drawn token the first of it up to which its tokens weigh more than what is left of that share.

Sums are of whole numbers, which have the same bits in any order, and blocks do not depend on how many rows there are: neither the rows
beside it nor the launch changes what a row gets. Devices differ by the rounding of an exponential.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.support import constexpr, early, kernel, power_of_two, tl, usable, wait_for_inputs
from inferometer.kernels.token_rows import Bounds, Drawing, Places

BLOCK = 4096
"""Tokens of a block. Other blocks would draw other tokens where rounding decides."""
BITS = 40
"""Fraction bits of a weight. A vocabulary of 2^22 tokens fits an int64."""
LARGEST = torch.finfo(torch.float32).max
LOWEST = torch.finfo(torch.float32).min
HOTTEST = 2.0**126
"""The highest temperature: its inverse is still a normal number, and -inf times it is -inf."""


def choose(logits: Tensor, places: Places, drawing: Drawing | None = None, bounds: Bounds | None = None) -> None:
    """Each row's token and its log-probability, among the tokens that `bounds` leave and at the row's temperature.

    logits: (rows, vocabulary) of any floating type, the last dimension contiguous; worked on in float32. A NaN counts as -inf, +inf as
    the largest float32. Of equal scores the lowest id is the best. A row without a finite score gives token 0 with log-probability
    -inf. drawing: None where every row takes its best. places: for as many rows or more; the first are written.

    Moves rows * vocabulary elements, read once, 32 bytes for each block of a row, and once more the one block that a token is drawn from.
    """
    if usable(logits.device):
        choose_triton(logits, places, drawing, bounds)
    else:
        choose_torch(logits, places, drawing, bounds)


def choose_torch(logits: Tensor, places: Places, drawing: Drawing | None = None, bounds: Bounds | None = None) -> None:
    """The reference."""
    scores = processed(logits, drawing, bounds)
    if drawing is None:
        token_ids = best(scores)
    else:
        uniforms = drawing.uniforms[:, :1] if drawing.step is None else drawing.uniforms.index_select(1, drawing.step)
        token_ids = draw(scores, uniforms)
        if scores.device.type != "cpu" or not bool(drawing.samples.all()):
            token_ids = torch.where(drawing.samples != 0, token_ids, best(scores))
    places.write(token_ids, scores.log_softmax(1).gather(1, token_ids[:, None]).squeeze(1).nan_to_num(nan=-torch.inf, neginf=-torch.inf))


def processed(logits: Tensor, drawing: Drawing | None, bounds: Bounds | None) -> Tensor:
    """The scores whose softmax is what a token is drawn from: float32 (rows, vocabulary).

    A temperature divides the distance to the best that is left, which changes no probability: any temperature leaves it finite.
    """
    scores = clean(logits.to(torch.float32))
    if bounds is not None:
        scores = torch.where(bounds.keep(scores), scores, -torch.inf)
    if drawing is None:
        return scores
    scores = scores.sub_(scores.amax(1, keepdim=True).clamp_(min=LOWEST))
    temperatures = drawing.temperatures[:, None]
    if scores.device.type == "cpu" and bool((temperatures == 1).all()):
        return scores
    return scores.div_(temperatures.clamp(max=HOTTEST))


def clean(scores: Tensor) -> Tensor:
    """A copy of `scores`, float32 of any shape, in which NaN counts as -inf and +inf as the largest number."""
    return scores.nan_to_num(nan=-torch.inf, posinf=LARGEST, neginf=-torch.inf)


def best(scores: Tensor) -> Tensor:
    """The id of each row's best score, the lowest among equals, int64 (rows,). Blocks first: torch's argmax is ten times as slow on a CPU
    as its maximum."""
    if not scores.numel():
        return scores.argmax(1)
    blocks = blocked(scores)
    block = blocks.amax(2).argmax(1)
    return block * BLOCK + _taken(blocks, block).argmax(1)


def draw(scores: Tensor, uniforms: Tensor) -> Tensor:
    """One token a row, as the module says: int64 (rows,).

    scores: float32 (rows, vocabulary), without NaN or +inf, any temperature applied. uniforms: float64 (rows, 1) in
    [0, 1). A token without probability weighs nothing and is never drawn; a row of such tokens gives token 0.
    """
    if not scores.numel():
        return scores.argmax(1)
    blocks = blocked(scores)
    bests = blocks.amax(2)
    # Whole numbers below 2^53 all the way: floating sums of them are exact, and need no second copy of the vocabulary.
    weights = (blocks - bests[:, :, None].clamp(min=LOWEST)).exp_().mul_(2.0**BITS).floor_()
    sums = weights.sum(2, dtype=torch.float64).to(torch.int64)
    shrunk = (bests - bests.amax(1, keepdim=True).clamp_(min=LOWEST)).exp_()
    shares = (sums.to(torch.float64) * shrunk.to(torch.float64)).to(torch.int64)
    cumulative = shares.cumsum(1)
    total = cumulative[:, -1:]
    # The product may round up to the total, which nothing exceeds.
    target = torch.minimum((uniforms * total.to(torch.float64)).to(torch.int64), total - 1)
    block = torch.searchsorted(cumulative, target, right=True)
    share, own = shares.gather(1, block), sums.gather(1, block)
    left = target - (cumulative.gather(1, block) - share)
    inside = torch.minimum((left.to(torch.float64) / share.to(torch.float64) * own.to(torch.float64)).to(torch.int64), own - 1)
    inner = _taken(weights, block.squeeze(1)).to(torch.int64).cumsum(1)
    token_ids = block * BLOCK + torch.searchsorted(inner, inside, right=True)
    return torch.where(total > 0, token_ids, 0).squeeze(1)


def weigh(scores: Tensor, reference: Tensor) -> Tensor:
    """exp(scores - reference) in fixed point, int64; scores are not above the reference. Where that is -inf nothing weighs anything."""
    return (scores - reference.clamp(min=LOWEST)).exp_().mul_(2.0**BITS).to(torch.int64)


def blocked(scores: Tensor) -> Tensor:
    """(rows, vocabulary) -> (rows, blocks, BLOCK), filled up with -inf; of a vocabulary of less than BLOCK, one block of that."""
    rows, vocabulary = scores.shape
    if vocabulary < BLOCK:
        return scores[:, None]
    missing = -vocabulary % BLOCK
    return (functional.pad(scores, (0, missing), value=-torch.inf) if missing else scores).view(rows, -1, BLOCK)


def _taken(blocks: Tensor, block: Tensor) -> Tensor:
    """Of each row the one block: (rows, BLOCK)."""
    return blocks.gather(1, block[:, None, None].expand(-1, 1, blocks.shape[2])).squeeze(1)


def choose_triton(logits: Tensor, places: Places, drawing: Drawing | None = None, bounds: Bounds | None = None) -> None:
    """The kernels: every block of every row, then every row."""
    rows, vocabulary = logits.shape
    if not rows:
        return
    assert logits.stride(1) == 1
    assert places.rows >= rows
    count = -(-vocabulary // BLOCK)
    device = logits.device
    tops = torch.empty((rows, count), dtype=torch.float32, device=device)
    ids = torch.empty((rows, count), dtype=torch.int32, device=device)
    sums = torch.empty((rows, count), dtype=torch.int64, device=device)
    kept = (tops, ids, tops) if bounds is None else (bounds.floors, bounds.last_ids, bounds.ceilings)
    temperatures = tops if drawing is None else drawing.temperatures
    options: dict[str, Any] = {"drawn": drawing is not None, "bounded": bounds is not None, "block": BLOCK, "bits": BITS, "num_warps": 8}
    options |= early(device)
    stride, step = logits.stride(0), temperatures.stride(0)
    _blocks.launch((rows * count,), logits, temperatures, *kept, tops, ids, sums, vocabulary, stride, step, count, **options)
    if drawing is None:
        draws = tops, tops, tops, 0, 0
    else:
        column = drawing.samples if drawing.step is None else drawing.step
        draws = drawing.samples, drawing.uniforms, column, drawing.samples.stride(0), drawing.uniforms.stride(0)
    seats, newest = (places.token_ids, places.token_ids) if places.seats is None else (places.seats, places.newest)
    _rows.launch(
        (rows,), logits, temperatures, *kept, tops, ids, sums, *draws, places.token_ids, places.logprobs, seats, newest, vocabulary, stride,
        step, count, width=power_of_two(count), counted=drawing is not None and drawing.step is not None,
        seated=places.seats is not None, **options,
    )  # fmt: skip


@kernel()
def score_of(logits: Any) -> Any:
    """float32, NaN as -inf, +inf as the largest number."""
    score = logits.to(tl.float32)
    return tl.where(score == score, tl.minimum(score, 3.4028234663852886e38), float("-inf"))


@kernel()
def finite(score: Any) -> Any:
    """-inf as the lowest number: a reference whose distance to -inf is -inf."""
    return tl.maximum(score, -3.4028234663852886e38)


@kernel()
def inverse(temperatures: Any) -> Any:
    """1 / temperature, at most HOTTEST."""
    return 1.0 / tl.minimum(tl.load(temperatures), 8.507059173023462e37)


@kernel()
def weight_of(distance: Any, bits: constexpr) -> Any:
    """exp(distance) in fixed point, for distances up to 0."""
    one: tl.constexpr = 1 << bits
    return (tl.exp(distance) * one).to(tl.int64)


@kernel()
def scores_at(
    logits: Any, start: Any, vocabulary: Any, floors: Any, last_ids: Any, ceilings: Any, bounded: constexpr, block: constexpr,
) -> Any:  # fmt: skip
    """Scores of a block of a row, -inf where there is no token or none that is left. logits, bounds: addresses of the row."""
    i = start + tl.arange(0, block)
    if start + block <= vocabulary:
        # Without a mask: it would break the loads up, if the vocabulary is no multiple of theirs.
        score = score_of(tl.load(logits + i))
    else:
        score = score_of(tl.load(logits + i, mask=i < vocabulary, other=float("-inf")))
    if bounded:
        floor = tl.load(floors)
        kept = (score > floor) | ((score == floor) & (i <= tl.load(last_ids)))
        score = tl.where(kept & (score <= tl.load(ceilings)), score, float("-inf"))
    return score


@kernel("vocabulary", "count")
def _blocks(
    logits: Any, temperatures: Any, floors: Any, last_ids: Any, ceilings: Any, tops: Any, ids: Any, sums: Any, vocabulary: Any,
    row_stride: Any, temperature_stride: Any, count: Any, drawn: constexpr, bounded: constexpr, block: constexpr, bits: constexpr,
    early: constexpr,
) -> None:  # fmt: skip
    """Of one block: the best score, its first id, and the sum of the weights."""
    wait_for_inputs(early)
    at = tl.program_id(0)
    row = (at // count).to(tl.int64)
    start = at % count * block
    score = scores_at(logits + row * row_stride, start, vocabulary, floors + row, last_ids + row, ceilings + row, bounded, block)
    top = tl.max(score, 0)
    distance = score - finite(top)
    if drawn:
        distance = distance * inverse(temperatures + row * temperature_stride)
    i = start + tl.arange(0, block)
    tl.store(tops + at, top)
    tl.store(ids + at, tl.min(tl.where(score == top, i, 2147483647), 0))
    tl.store(sums + at, tl.sum(weight_of(distance, bits), 0))


@kernel("uniforms", "step", "token_ids", "logprobs", "seats", "newest", "vocabulary", "count")
def _rows(
    logits: Any, temperatures: Any, floors: Any, last_ids: Any, ceilings: Any, tops: Any, ids: Any, sums: Any, samples: Any, uniforms: Any,
    step: Any, sample_stride: Any, uniform_stride: Any, token_ids: Any, logprobs: Any, seats: Any, newest: Any, vocabulary: Any,
    row_stride: Any, temperature_stride: Any, count: Any, width: constexpr, counted: constexpr, seated: constexpr, drawn: constexpr,
    bounded: constexpr, block: constexpr, bits: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One row, from its blocks."""
    wait_for_inputs(early)
    row = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, width)
    real = b < count
    top = tl.load(tops + row * count + b, mask=real, other=float("-inf"))
    own = tl.load(sums + row * count + b, mask=real, other=0)
    best = tl.max(top, 0)
    distance = top - finite(best)
    if drawn:
        warmth = inverse(temperatures + row * temperature_stride)
        distance = distance * warmth
    share = (own.to(tl.float64) * tl.exp(distance).to(tl.float64)).to(tl.int64)
    total = tl.sum(share, 0)
    token = tl.load(ids + row * count + tl.min(tl.where(top == best, b, 2147483647), 0))
    value = tl.full([], 0.0, tl.float32)
    if drawn:  # noqa: SIM102 (known when compiled, the other when run)
        if (tl.load(samples + row * sample_stride) != 0) & (total > 0):
            column = 0
            if counted:
                column = tl.load(step).to(tl.int32)
            uniform = tl.load(uniforms + row * uniform_stride + column)
            target = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
            chosen = tl.sum((tl.cumsum(share, 0) <= target).to(tl.int32), 0)
            left = target - tl.sum(tl.where(b < chosen, share, 0), 0)
            part = left.to(tl.float64) / tl.sum(tl.where(b == chosen, share, 0), 0).to(tl.float64)
            start = chosen * block
            score = scores_at(logits + row * row_stride, start, vocabulary, floors + row, last_ids + row, ceilings + row, bounded, block)
            weight = weight_of((score - finite(tl.max(score, 0))) * warmth, bits)
            weighs = tl.sum(weight, 0)
            inside = tl.minimum((part * weighs.to(tl.float64)).to(tl.int64), weighs - 1)
            i = tl.arange(0, block)
            place = tl.sum((tl.cumsum(weight, 0) <= inside).to(tl.int32), 0)
            token = start + place
            value = (tl.max(tl.where(i == place, score, float("-inf")), 0) - finite(best)) * warmth
    one: tl.constexpr = 1 << bits
    logprob = value - tl.log(tl.maximum(total, 1).to(tl.float64) / one).to(tl.float32)
    tl.store(token_ids + row, token.to(tl.int64))
    tl.store(logprobs + row, tl.where(total > 0, logprob, float("-inf")))
    if seated:
        tl.store(newest + tl.load(seats + row), token.to(tl.int64))
