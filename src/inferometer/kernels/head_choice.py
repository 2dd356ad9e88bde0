"""The best token straight from hidden states: the head's product of few rows, whose logits are never written."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from inferometer.kernels.skinny import skinny_peaks, standard
from inferometer.kernels.skinny_launch import MOST_ROWS, Tiling
from inferometer.kernels.support import constexpr, early, kernel, power_of_two, tl, usable, wait_for_inputs
from inferometer.kernels.token_choice import choose_torch, finite
from inferometer.kernels.token_rows import Places

TILES = 4096
"""Tiles that a program looks at together."""


def choose_best(x: Tensor, weight: Tensor, places: Places, launch: Tiling | None = None) -> None:
    """The best token of the logits x weight^T of each row and its log-probability, as `choose` would of logits rounded to their type.

    x: (rows, inputs), up to MOST_ROWS rows. weight: (vocabulary, inputs), contiguous. places: as in `choose`. launch: how the product is
    spread. Raises ValueError for more rows.

    Moves the weight once, and of each row and tile of outputs 12 bytes twice: for the launches of the table 3 bytes of an output of one
    row, 0.19 of those of several, where logits would be 2. The token is that of the logits bit by bit. The log-probability is summed up
    in float32 over the tiles of the launch, so that its last bits depend on the launch, as the logits themselves do.
    """
    if x.shape[0] > MOST_ROWS:
        raise ValueError(f"{x.shape[0]} rows are more than {MOST_ROWS}")
    if usable(x.device):
        choose_best_triton(x, weight, places, launch)
    else:
        choose_best_torch(x, weight, places)


def choose_best_torch(x: Tensor, weight: Tensor, places: Places) -> None:
    """The reference."""
    choose_torch(functional.linear(x, weight), places)


def choose_best_triton(x: Tensor, weight: Tensor, places: Places, launch: Tiling | None = None) -> None:
    """The kernels: the product with the peaks of its tiles, then every row."""
    rows = x.shape[0]
    if not rows:
        return
    assert places.rows >= rows
    peaks = skinny_peaks(x, weight, launch or standard(rows, weight.shape[1], x.dtype))
    tiles = peaks.tops.shape[1]
    block = min(TILES, power_of_two(tiles))
    seats, newest = (places.token_ids, places.token_ids) if places.seats is None else (places.seats, places.newest)
    _join.launch(
        (rows,), peaks.tops, peaks.ids, peaks.sums, places.token_ids, places.logprobs, seats, newest, tiles,
        seated=places.seats is not None, block=block, num_warps=max(1, min(16, block // 256)), **early(x.device),
    )  # fmt: skip


@kernel("token_ids", "logprobs", "seats", "newest", "tiles")
def _join(
    tops: Any, ids: Any, sums: Any, token_ids: Any, logprobs: Any, seats: Any, newest: Any, tiles: Any, seated: constexpr,
    block: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One row, from its tiles. Of equal ones a lane keeps the first that it sees, which is the one of the lowest output."""
    wait_for_inputs(early)
    row = tl.program_id(0)
    lane = tl.arange(0, block)
    best = tl.full([block], float("-inf"), tl.float32)
    first = tl.zeros([block], tl.int32)
    total = tl.zeros([block], tl.float32)
    for start in range(0, tiles, block):
        real = start + lane < tiles
        at = row * tiles + start + lane
        top = tl.load(tops + at, mask=real, other=float("-inf"))
        own = tl.load(ids + at, mask=real, other=0)
        sum_here = tl.load(sums + at, mask=real, other=0)
        first = tl.where(top > best, own, first)
        higher = finite(tl.maximum(best, top))
        total = total * tl.exp(best - higher) + sum_here * tl.exp(top - higher)
        best = tl.maximum(best, top)
    highest = tl.max(best, 0)
    token = tl.min(tl.where(best == highest, first, 2147483647), 0).to(tl.int64)
    mass = tl.sum(total * tl.exp(best - finite(highest)), 0)
    logprob = -tl.log(tl.maximum(mass, 1.0).to(tl.float64)).to(tl.float32)
    tl.store(token_ids + row, token)
    tl.store(logprobs + row, tl.where(highest > float("-inf"), logprob, float("-inf")))
    if seated:
        tl.store(newest + tl.load(seats + row), token)
