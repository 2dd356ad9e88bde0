"""The sum of what lies here and what other ranks have copied here, with the residual stream and the norm behind it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from inferometer.kernels.norm import ELEMENTS, WIDEST, NormWeights, standardised
from inferometer.kernels.rank_sum import rank_sum_norm_torch, rank_sum_torch
from inferometer.kernels.support import constexpr, kernel, power_of_two, tl, usable

CHUNK = 4096
"""Of a sum without a norm, numbers that a program takes."""


def part_sum(x: Tensor, others: Tensor, rank: int) -> Tensor:
    """x becomes its sum with the parts of the other ranks: in float32 in the order of the ranks, rounded once.

    x: of any shape, contiguous. others: (size - 1, *x.shape), of x's type, the parts of the ranks before this one first; the last
    dimensions are contiguous. Moves (size + 1) * x.nbytes.
    """
    if usable(x.device):
        return part_sum_triton(x, others, rank)
    return x.copy_(rank_sum_torch(_parts(x, others, rank)))


def part_sum_norm(x: Tensor, others: Tensor, rank: int, residual: Tensor, norm: NormWeights, out: Tensor) -> Tensor:
    """residual becomes residual + the sum of `part_sum`, both rounded to their type; returns out, the norm of that.

    x, residual, out: (tokens, hidden), contiguous, of one type; out may be x. Moves (size + 3) * x.nbytes.
    """
    if usable(x.device) and x.shape[1] <= WIDEST:
        return part_sum_norm_triton(x, others, rank, residual, norm, out)
    return out.copy_(rank_sum_norm_torch(_parts(x, others, rank), residual, norm))


def part_sum_triton(x: Tensor, others: Tensor, rank: int) -> Tensor:
    """The kernel."""
    if x.numel():
        _launch(x, others, rank, -(-x.numel() // CHUNK), CHUNK, None, None, x)
    return x


def part_sum_norm_triton(x: Tensor, others: Tensor, rank: int, residual: Tensor, norm: NormWeights, out: Tensor) -> Tensor:
    """The kernel."""
    assert residual.shape == out.shape == x.shape
    assert residual.is_contiguous()
    assert out.is_contiguous()
    if x.numel():
        _launch(x, others, rank, x.shape[0], x.shape[1], residual, norm, out)
    return out


def _launch(
    x: Tensor, others: Tensor, rank: int, rows: int, row: int, residual: Tensor | None, norm: NormWeights | None, out: Tensor
) -> None:
    assert x.is_contiguous()
    assert others.dtype == x.dtype
    assert others.shape[1:] == x.shape
    assert others[0].is_contiguous()
    width = power_of_two(row)
    weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
    _part_sum.launch(
        (rows,), x, others, out, x if residual is None else residual, x if weight is None else weight, x if bias is None else bias,
        0.0 if norm is None else norm.epsilon, others.stride(0), rank, x.numel(), row=row, width=width, size=others.shape[0] + 1,
        normed=None if norm is None else norm.kind, weighted=weight is not None, biased=bias is not None,
        num_warps=min(32, max(1, width // (32 * ELEMENTS))),
    )  # fmt: skip


def _parts(x: Tensor, others: Tensor, rank: int) -> list[Tensor]:
    return [*others[:rank], x, *others[rank:]]


@kernel("rank", "total")
def _part_sum(
    x: Any, others: Any, out: Any, residual: Any, weight: Any, bias: Any, epsilon: Any, apart: Any, rank: Any, total: Any, row: constexpr,
    width: constexpr, size: constexpr, normed: constexpr, weighted: constexpr, biased: constexpr,
) -> None:  # fmt: skip
    """One row. Never begun before the launch ahead has ended: what it waits for is the copies of another stream."""
    dtype: tl.constexpr = x.dtype.element_ty
    i = tl.arange(0, width)
    at = tl.program_id(0).to(tl.int64) * row + i
    real = (i < row) & (at < total)
    own = tl.load(x + at, mask=real, other=0).to(tl.float32)
    if normed is not None:
        before = tl.load(residual + at, mask=real, other=0).to(tl.float32)
        if weighted:
            factor = tl.load(weight + i, mask=real, other=0).to(tl.float32)
        if biased:
            shift = tl.load(bias + i, mask=real, other=0).to(tl.float32)
    value = own if rank == 0 else tl.load(others + at, mask=real, other=0).to(tl.float32)
    for source in tl.static_range(1, size):
        # Of those behind this rank, one fewer lies before.
        other = source - (rank < source).to(tl.int64)
        part = tl.load(others + other * apart + at, mask=real & (source != rank), other=0).to(tl.float32)
        value += tl.where(source == rank, own, part)
    value = value.to(dtype)
    if normed is None:
        tl.store(out + at, value, mask=real)
    else:
        stream = (before + value.to(tl.float32)).to(dtype)
        tl.store(residual + at, stream, mask=real)
        value = standardised(stream.to(tl.float32), real, row, epsilon, normed == "layer")
        if weighted:
            value = value * factor
        if biased:
            value = value + shift
        tl.store(out + at, value, mask=real)
