"""The best token where each rank has the logits of a part of the vocabulary: 12 bytes a row are all that it tells the others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.head_matrix import Matrix, head_peaks
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.peaks import Peaks, joined, peak, put_choice, row_peak
from inferometer.kernels.skinny_launch import Tiling
from inferometer.kernels.support import constexpr, early, kernel, power_of_two, tl, usable, wait_for_inputs
from inferometer.kernels.token_choice import LOWEST, best, clean
from inferometer.kernels.token_rows import Places

BLOCK = 4096
"""Logits of a program. Fixed, so that a row's sum of exponentials is added up in one order."""
PARTS = 4096
"""Peaks that a program looks at together."""


def row_peaks(logits: Tensor, first: int) -> Tensor:
    """int32 (rows, 3): of each row its best score, float32, that one's token and the sum of exp(score - best), float32, all as bits.

    logits: (rows, tokens) of any floating type, the last dimension contiguous; their tokens count from `first`. Of equal scores the lowest
    token is the best. NaN counts as -inf, +inf as the largest float32. Without a finite score the best is -inf and the sum 0.

    Moves rows * tokens elements once, and 12 bytes of each BLOCK of a row twice. A row's bits depend on that row alone.
    """
    if not logits.shape[1]:
        return _packed(logits.new_full((logits.shape[0],), -torch.inf, dtype=torch.float32), first, 0.0)
    return row_peaks_triton(logits, first) if usable(logits.device) else row_peaks_torch(logits, first)


def choose_among(peaks: Tensor, places: Places) -> None:
    """The best token of each row over all ranks, and its log-probability.

    peaks: int32 (rows, 3 * ranks), of `row_peaks` side by side, tokens going up with ranks. places: as in `token_choice.choose`. Without a
    finite score: the first token, with log-probability -inf.
    """
    if usable(peaks.device):
        choose_among_triton(peaks, places)
    else:
        choose_among_torch(peaks, places)


def row_peaks_torch(logits: Tensor, first: int) -> Tensor:
    """The reference. By torch's own log-softmax, which takes row by row in one order."""
    scores = clean(logits.to(torch.float32))
    tokens = best(scores)
    tops = scores.gather(1, tokens[:, None])
    mass = scores.log_softmax(1).gather(1, tokens[:, None]).neg().exp()
    return _packed(tops[:, 0], tokens + first, torch.where(tops > -torch.inf, mass, 0.0)[:, 0])


def choose_among_torch(peaks: Tensor, places: Places) -> None:
    """The reference."""
    tops, tokens, sums = (part.contiguous() for part in peaks.view(peaks.shape[0], -1, 3).unbind(2))
    scores = tops.view(torch.float32)
    highest = scores.amax(1, keepdim=True)
    chosen = tokens.masked_fill(scores != highest, torch.iinfo(torch.int32).max).amin(1)
    shares = sums.view(torch.float32) * (scores - highest.clamp(min=LOWEST)).exp()
    total = shares[:, 0].double()
    for rank in range(1, shares.shape[1]):
        total = total + shares[:, rank]
    logprobs = total.clamp(min=1.0).log().neg().float()
    places.write(chosen.to(torch.int64), torch.where(highest[:, 0] > -torch.inf, logprobs, -torch.inf))


def row_peaks_triton(logits: Tensor, first: int) -> Tensor:
    """The kernels: every block of every row, then every row."""
    (rows, tokens), device = logits.shape, logits.device
    count = -(-tokens // BLOCK)
    peaks = Peaks.of(rows, count, device)
    if rows:
        assert logits.stride(1) == 1
        _blocks.launch(
            (rows * count,), logits, peaks.tops, peaks.ids, peaks.sums, tokens, logits.stride(0), count, block=BLOCK, num_warps=8,
            **early(device),
        )  # fmt: skip
    return narrowed(peaks, first)


def product_peaks(x: Tensor, weight: Matrix, first: int, launch: Tiling, norm: NormWeights | None = None) -> Tensor:
    """As `row_peaks` of the logits x weight^T rounded to their type, which are never in memory; of few rows, on a GPU alone.

    x: (rows, inputs). weight: (tokens, inputs), contiguous, plain or in 8 bits. norm: x is normed first, as in `head_product`.
    """
    return narrowed(head_peaks(x, weight, launch, norm), first)


def narrowed(peaks: Peaks, first: int) -> Tensor:
    """One peak a row, int32 (rows, 3) as `row_peaks` has it, of many; on a GPU."""
    rows, parts = peaks.tops.shape
    out = torch.empty((rows, 3), dtype=torch.int32, device=peaks.tops.device)
    if rows:
        block = min(PARTS, power_of_two(parts))
        _narrow.launch(
            (rows,), peaks.tops, peaks.ids, peaks.sums, out.view(torch.float32), out, parts, first, block=block,
            num_warps=max(1, min(16, block // 256)), **early(out.device),
        )  # fmt: skip
    return out


def choose_among_triton(peaks: Tensor, places: Places) -> None:
    """The kernel."""
    rows, width = peaks.shape
    if not rows:
        return
    assert places.rows >= rows
    peaks = peaks.contiguous()
    seats, newest = (places.token_ids, places.token_ids) if places.seats is None else (places.seats, places.newest)
    _among.launch(
        (rows,), peaks.view(torch.float32), peaks, places.token_ids, places.logprobs, seats, newest, width // 3,
        width=power_of_two(width // 3), seated=places.seats is not None, num_warps=1, **early(peaks.device),
    )  # fmt: skip


def _packed(tops: Tensor, tokens: Tensor | int, sums: Tensor | float) -> Tensor:
    out = torch.empty((tops.shape[0], 3), dtype=torch.int32, device=tops.device)
    out[:, 1] = tokens
    real = out.view(torch.float32)
    real[:, 0], real[:, 2] = tops, sums
    return out


@kernel("tokens", "count")
def _blocks(
    logits: Any, tops: Any, ids: Any, sums: Any, tokens: Any, row_stride: Any, count: Any, block: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """The peak of one block of one row."""
    wait_for_inputs(early)
    at = tl.program_id(0)
    row = (at // count).to(tl.int64)
    n = at % count * block + tl.arange(0, block)[None, :]
    real = n < tokens
    value = tl.load(logits + row * row_stride + n, mask=real, other=float("-inf"))
    here = at + tl.zeros([1], tl.int32)
    peak(value, n, real, here, here >= 0, tops, ids, sums)


@kernel("parts", "first")
def _narrow(tops: Any, ids: Any, sums: Any, real: Any, whole: Any, parts: Any, first: Any, block: constexpr, early: constexpr) -> None:
    """One row, from the peaks of its parts. real, whole: the result as numbers of either type."""
    wait_for_inputs(early)
    row = tl.program_id(0)
    highest, chosen, mass = row_peak(tops, ids, sums, row, parts, block)
    tl.store(real + row * 3, highest)
    tl.store(whole + row * 3 + 1, chosen + first)
    tl.store(real + row * 3 + 2, mass)


@kernel("token_ids", "logprobs", "seats", "newest", "ranks")
def _among(
    real: Any, whole: Any, token_ids: Any, logprobs: Any, seats: Any, newest: Any, ranks: Any, width: constexpr, seated: constexpr,
    early: constexpr,
) -> None:  # fmt: skip
    """One row. real, whole: the peaks of all ranks as numbers of either type."""
    wait_for_inputs(early)
    row = tl.program_id(0)
    lane = tl.arange(0, width)
    held = lane < ranks
    at = (row * ranks + lane) * 3
    top = tl.load(real + at, mask=held, other=float("-inf"))
    own = tl.load(whole + at + 1, mask=held, other=2147483647)
    mass = tl.load(real + at + 2, mask=held, other=0)
    highest, place, total = joined(top, own, mass)
    put_choice(token_ids, logprobs, seats, newest, row, highest, place, total, seated)
