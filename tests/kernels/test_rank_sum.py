"""Sums over ranks that write into each other's memory: several processes, launch after launch, against sums in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels.mailbox import ABSENT, Mailbox
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_sum import rank_sum, rank_sum_norm, rank_sum_norm_torch, rank_sum_torch, sums, sums_rows
from inferometer.model.spec import NormKind
from kernels.rank_processes import run_ranks

EPSILON = 1e-5


def part(rank: int, step: int, rows: int, hidden: int, dtype: torch.dtype) -> Tensor:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(rows, hidden, generator=draw).to(dtype)
    if step == 1:  # words that look as if they had not come, a zero with a sign, and what is infinite
        x.view(torch.int32)[0, :4] = -1
        x[0, 10:14], x[0, 14] = -0.0, torch.inf
    return x


def weights(kind: NormKind, hidden: int, dtype: torch.dtype) -> NormWeights:
    draw = torch.Generator().manual_seed(5)
    weight, bias = torch.randn(2, hidden, generator=draw).to(dtype)
    return NormWeights(kind, EPSILON, weight, bias if kind == "layer" else None)


def add(box: Mailbox, rows: list[int], hidden: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    found = [rank_sum(part(box.rank, step, count, hidden, dtype), box) for step, count in enumerate(rows)]
    return found, box.words.clone()


def add_and_norm(box: Mailbox, rows: list[int], hidden: int, dtype: torch.dtype, kind: NormKind) -> list[tuple[Tensor, Tensor]]:
    found = []
    for step, count in enumerate(rows):
        residual = part(99, step, count, hidden, dtype)
        normed = rank_sum_norm(part(box.rank, step, count, hidden, dtype), residual, weights(kind, hidden, dtype), box)
        found.append((normed, residual))
    return found


def same(tensors: list[Tensor]) -> bool:
    """Bit for bit, NaNs too."""
    return all(torch.equal(tensors[0].view(torch.int16), other.view(torch.int16)) for other in tensors[1:])


def rounding(dtype: torch.dtype) -> float:
    """Triton's interpreter cuts bfloat16 off where a GPU rounds."""
    return 2e-2 if dtype == torch.bfloat16 else 0.0


@pytest.mark.usefixtures("interpreted")
class TestInterpreted:
    @pytest.mark.parametrize(("size", "dtype"), [(2, torch.bfloat16), (3, torch.float16), (4, torch.float32)])
    def test_every_rank_has_the_sum(self, size: int, dtype: torch.dtype) -> None:
        rows, hidden = [1, 3, 1, 2, 3], 96
        found: list[Any] = run_ranks(add, size, 2048, 2, rows, hidden, dtype)
        for step, count in enumerate(rows):
            parts = [part(rank, step, count, hidden, dtype) for rank in range(size)]
            got = [results[step] for results, _ in found]
            assert same(got)
            close = rounding(dtype)
            torch.testing.assert_close(got[0], rank_sum_torch(parts), equal_nan=True, rtol=close, atol=0)
            exact = torch.stack([x.double() for x in parts]).sum(0)
            torch.testing.assert_close(got[0].double(), exact, equal_nan=True, rtol=1e-2, atol=2e-2)
        assert all(bool((words == ABSENT).all()) for _, words in found)

    @pytest.mark.parametrize(
        ("kind", "dtype", "hidden"), [("layer", torch.bfloat16, 80), ("rms", torch.float16, 64), ("rms", torch.float32, 36)]
    )
    def test_with_residual_and_norm(self, kind: NormKind, dtype: torch.dtype, hidden: int) -> None:
        rows = [1, 5, 2, 1, 4]
        found: list[Any] = run_ranks(add_and_norm, 2, 128, 2, rows, hidden, dtype, kind)
        for step, count in enumerate(rows):
            residual = part(99, step, count, hidden, dtype)
            parts = [part(rank, step, count, hidden, dtype) for rank in range(2)]
            exact = residual.double() + parts[0].double() + parts[1].double()
            normed = rank_sum_norm_torch(parts, residual, weights(kind, hidden, dtype))
            for index in range(2):
                assert same([results[step][index] for results in found])
            close = rounding(dtype)
            torch.testing.assert_close(found[0][step][1], residual, equal_nan=True, rtol=close, atol=close)
            torch.testing.assert_close(found[0][step][1].double(), exact, equal_nan=True, rtol=2e-2, atol=3e-2)
            torch.testing.assert_close(found[0][step][0], normed, equal_nan=True, rtol=2e-2, atol=2e-2)


def box_of(size: int, room: int, programs: int = 4) -> Mailbox:
    words = torch.empty(Mailbox.shape(size, room, programs), dtype=torch.int64)
    return Mailbox.over(0, words, [words.data_ptr()] * size)


def test_what_does_not_fit_is_told_apart_before_a_launch() -> None:
    box = box_of(2, 1024)
    assert sums(torch.zeros(4, 4096, dtype=torch.bfloat16), box)
    assert not sums(torch.zeros(5, 4096, dtype=torch.bfloat16), box)
    assert not sums(torch.zeros(0, dtype=torch.bfloat16), box)
    assert not sums(torch.zeros(3, dtype=torch.bfloat16), box)  # no whole number of words
    assert not sums(torch.zeros(4, 8).T, box)
    assert not sums(torch.zeros(8, dtype=torch.float64), box)
    assert sums_rows(torch.zeros(4, 4096, dtype=torch.bfloat16), box)
    assert not sums_rows(torch.zeros(5, 4096, dtype=torch.bfloat16), box)
    assert not sums_rows(torch.zeros(1, 4098, dtype=torch.bfloat16), box)
    assert not sums_rows(torch.zeros(1, 16384, dtype=torch.bfloat16), box_of(16, 4096))


def test_of_more_ranks_rows_may_be_less_wide() -> None:
    assert sums_rows(torch.zeros(1, 16384, dtype=torch.bfloat16), box_of(4, 4096))
