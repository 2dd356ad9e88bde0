"""The best of every tile of logits, which the launch that computes them leaves in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.skinny_launch import Tiling
from inferometer.kernels.support import kernel, tl
from inferometer.kernels.token_choice import finite, score_of


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of each row and each tile of outputs, (rows, tiles): the best value, float32, its first output, int32, and the sum of
    exp(value - best), float32. NaN counts as -inf, +inf as the largest float32."""

    tops: Tensor
    ids: Tensor
    sums: Tensor

    @classmethod
    def of(cls, rows: int, outputs: int, launch: Tiling, device: torch.device) -> Peaks:
        """Uninitialised ones for the tiles of a launch."""
        size = rows, -(-outputs // launch.outputs)
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
