"""Sums of parts that lie in one place: the reference against float64, and the kernel against the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels.norm import NormWeights
from inferometer.kernels.part_sum import part_sum, part_sum_norm, part_sum_norm_triton, part_sum_triton
from inferometer.model.spec import NormKind

CASES: list[tuple[NormKind, torch.dtype, int, int]] = [
    ("layer", torch.float32, 2, 1),
    ("rms", torch.float16, 3, 0),
    ("layer", torch.float32, 4, 3),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}
ROWS, HIDDEN = 3, 36


def parts(size: int, dtype: torch.dtype) -> Tensor:
    """One more, for the residual stream. Further apart than they are long."""
    draw = torch.Generator().manual_seed(size)
    return torch.randn(size + 1, ROWS + 2, HIDDEN, generator=draw).to(dtype)[:, :ROWS]


def others(found: Tensor, rank: int) -> Tensor:
    """The parts of other ranks, as if copied here."""
    room = torch.full((found.shape[0] - 2, ROWS + 1, HIDDEN), torch.nan, dtype=found.dtype)[:, :ROWS]
    return room.copy_(torch.cat([found[:rank], found[rank + 1 : -1]]))


def norm(kind: NormKind, dtype: torch.dtype) -> NormWeights:
    weight, bias = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(7)).to(dtype)
    return NormWeights(kind, 1e-5, weight, bias if kind == "layer" else None)


def check(
    add: Callable[..., Tensor], add_and_norm: Callable[..., Tensor], kind: NormKind, dtype: torch.dtype, size: int, rank: int
) -> None:
    found, weights = parts(size, dtype), norm(kind, dtype)
    exact = found[:-1].double().sum(0)
    total = add(found[rank].clone(), others(found, rank), rank)
    torch.testing.assert_close(total.double(), exact, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    residual = found[-1].clone()
    x = found[rank].clone()
    normed = add_and_norm(x, others(found, rank), rank, residual, weights, torch.empty_like(x))
    assert torch.equal(x, found[rank])
    assert torch.equal(residual, found[-1] + total)  # as separate launches round
    alone = weights.of(found[-1] + total)
    torch.testing.assert_close(normed, alone, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize(("kind", "dtype", "size", "rank"), CASES)
def test_the_reference_adds_all_parts(kind: NormKind, dtype: torch.dtype, size: int, rank: int) -> None:
    check(part_sum, part_sum_norm, kind, dtype, size, rank)


@pytest.mark.parametrize(("kind", "dtype", "size", "rank"), CASES)
def test_the_kernel_adds_all_parts(kind: NormKind, dtype: torch.dtype, size: int, rank: int, interpreted: Callable[..., Any]) -> None:
    interpreted(check, part_sum_triton, part_sum_norm_triton, kind, dtype, size, rank)


def test_parts_are_added_in_the_order_of_ranks_whoever_adds_them() -> None:
    """1 and 2^-24 twice: in float32 it matters who is first."""
    found = torch.tensor([[[2.0**-24]], [[2.0**-24]], [[1.0]]]).expand(3, ROWS, HIDDEN)
    for rank in range(3):
        total = part_sum(found[rank].clone(), torch.cat([found[:rank], found[rank + 1 :]]), rank)
        assert torch.equal(total, torch.full_like(total, 1 + 2.0**-23))


def test_no_rows_are_no_launch() -> None:
    empty = torch.empty(0, HIDDEN)
    assert part_sum_triton(empty, empty[None], 0).shape == (0, HIDDEN)
    assert part_sum_norm_triton(empty, empty[None], 1, empty.clone(), norm("rms", torch.float32), empty).shape == (0, HIDDEN)
