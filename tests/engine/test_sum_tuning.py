"""A way of adding up over GPUs that is to be chosen must give the bits of the one that it is like."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from inferometer.engine.parallel.gpu_collective import GpuCollective
from inferometer.engine.parallel.sum_choice import LIKE, Way
from inferometer.engine.parallel.sum_tuning import agrees
from inferometer.kernels.norm import NormWeights

NBYTES = 1 << 14


class Doubling:
    """Two ranks that have the same; `wrong` is what a way does to a sum, its norm or the residual."""

    rank, size, device = 0, 2, torch.device("cpu")

    def __init__(self, wrong: str = "", *, other: int = 1, able: bool = True) -> None:
        self.wrong, self.other, self.is_able = wrong, other, able
        self.asked: list[Way] = []

    def able(self, way: Way, x: Tensor) -> bool:
        return self.is_able

    def minimum(self, number: int) -> int:
        return min(number, self.other)

    def sum_by(self, way: Way, x: Tensor) -> Tensor:
        self.asked.append(way)
        return self._spoilt(way, "sum", x + x)

    def norm_by(self, way: Way, x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        self.asked.append(way)
        residual.copy_(self._spoilt(way, "residual", residual + (x + x)))
        return self._spoilt(way, "norm", norm.of(residual.clone()))

    def _spoilt(self, way: Way, what: str, found: Tensor) -> Tensor:
        """One bit of a sum or a residual; a norm by more than a rounding."""
        if way in LIKE and what == self.wrong:
            found = found.clone()
            if what == "norm":
                found[0, 0] += 0.1
            else:
                found.view(torch.int16)[-1, -1] ^= 1
        return found


def agreed(ranks: Any, way: Way) -> bool:
    return agrees(cast(GpuCollective, ranks), way, NBYTES)


@pytest.mark.parametrize("way", sorted(LIKE))
def test_a_way_whose_numbers_are_those_of_the_one_that_it_is_like_may_be_chosen(way: Way) -> None:
    ranks = Doubling()
    assert agreed(ranks, way)
    assert set(ranks.asked) == {way, LIKE[way]}


@pytest.mark.parametrize("way", sorted(LIKE))
@pytest.mark.parametrize("wrong", ["sum", "residual", "norm"])
def test_one_whose_numbers_are_others_may_not(way: Way, wrong: str) -> None:
    assert not agreed(Doubling(wrong), way)


def test_what_one_rank_finds_wrong_all_leave() -> None:
    assert not agreed(Doubling(other=0), "around")


def test_what_is_like_none_or_does_not_serve_is_not_tried() -> None:
    ranks = Doubling("sum", able=False)
    assert all(agreed(ranks, way) for way in ("mailbox", "rows", "nccl", "around", "pairs"))
    assert ranks.asked == []
