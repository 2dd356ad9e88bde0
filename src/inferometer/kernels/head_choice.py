"""The best token straight from hidden states: the head's product of few rows, whose logits are never written."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from inferometer.kernels.head_matrix import Matrix, head_peaks, head_product_torch
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.peaks import put_choice, row_peak
from inferometer.kernels.skinny_launch import MOST_ROWS, Tiling
from inferometer.kernels.support import constexpr, early, kernel, power_of_two, tl, usable, wait_for_inputs
from inferometer.kernels.token_choice import choose_torch
from inferometer.kernels.token_rows import Places

PARTS = 4096
"""Programs of the product whose peaks are looked at together."""


def choose_best(x: Tensor, weight: Matrix, places: Places, launch: Tiling | None = None, norm: NormWeights | None = None) -> None:
    """The best token of the logits x weight^T of each row and its log-probability, as `choose` would of logits rounded to their type.

    x: (rows, inputs), up to MOST_ROWS rows. weight: (vocabulary, inputs), contiguous, plain or in 8 bits. places: as in `choose`.
    launch: how the product is spread. norm: rows are normed first, in the same launch where that holds whole rows. Raises ValueError for
    more rows.

    Moves the weight once, and of each row and program 12 bytes twice: a few kilobytes, where logits would be 2 bytes an output. The
    token is that of the logits bit by bit. The log-probability is summed up in float32 over the tiles of the launch, so that its last
    bits depend on the launch, as the logits themselves do.
    """
    if x.shape[0] > MOST_ROWS:
        raise ValueError(f"{x.shape[0]} rows are more than {MOST_ROWS}")
    if usable(x.device):
        choose_best_triton(x, weight, places, launch, norm)
    else:
        choose_best_torch(x, weight, places, norm)


def choose_best_torch(x: Tensor, weight: Matrix, places: Places, norm: NormWeights | None = None) -> None:
    """The reference."""
    choose_torch(head_product_torch(x if norm is None else norm.of(x), weight), places)


def choose_best_triton(x: Tensor, weight: Matrix, places: Places, launch: Tiling | None = None, norm: NormWeights | None = None) -> None:
    """The kernels: the product with the peaks of its programs, then every row."""
    rows = x.shape[0]
    if not rows:
        return
    assert places.rows >= rows
    peaks = head_peaks(x, weight, launch, norm)
    parts = peaks.tops.shape[1]
    block = min(PARTS, power_of_two(parts))
    seats, newest = (places.token_ids, places.token_ids) if places.seats is None else (places.seats, places.newest)
    _join.launch(
        (rows,), peaks.tops, peaks.ids, peaks.sums, places.token_ids, places.logprobs, seats, newest, parts,
        seated=places.seats is not None, block=block, num_warps=max(1, min(16, block // 256)), **early(x.device),
    )  # fmt: skip


@kernel("token_ids", "logprobs", "seats", "newest", "parts")
def _join(
    tops: Any, ids: Any, sums: Any, token_ids: Any, logprobs: Any, seats: Any, newest: Any, parts: Any, seated: constexpr,
    block: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One row, from the peaks of its parts."""
    wait_for_inputs(early)
    row = tl.program_id(0)
    highest, place, mass = row_peak(tops, ids, sums, row, parts, block)
    put_choice(token_ids, logprobs, seats, newest, row, highest, place, mass, seated)
