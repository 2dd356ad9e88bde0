"""The sum of what lies here and what other ranks have copied here, with the residual stream and the norm behind it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from inferometer.kernels.flags import Flags, until, wait
from inferometer.kernels.norm import ELEMENTS, WIDEST, NormWeights, standardised
from inferometer.kernels.rank_sum import rank_sum_norm_torch, rank_sum_torch
from inferometer.kernels.support import capability, constexpr, kernel, power_of_two, tl, usable

CHUNK = 4096
"""Of a sum without a norm, numbers that a program takes."""


def part_sum(x: Tensor, others: Tensor, rank: int, out: Tensor | None = None, flags: Flags | None = None) -> Tensor:
    """The sum of x with the parts of the other ranks: in float32 in the order of the ranks, rounded once; in out, else where x was.

    x, out: of any shape, contiguous. others: (size - 1, *x.shape), of x's type, the parts of the ranks before this one first; the last
    dimensions are contiguous. flags: that they are there, one word a rank; None if they are. Moves (size + 1) * x.nbytes.
    """
    if usable(x.device):
        return part_sum_triton(x, others, rank, out, flags)
    if flags is not None:
        wait(flags, ends=False)
    return (x if out is None else out).copy_(rank_sum_torch(_parts(x, others, rank)))


def part_sum_norm(
    x: Tensor, others: Tensor, rank: int, residual: Tensor, norm: NormWeights, out: Tensor, flags: Flags | None = None
) -> Tensor:
    """residual becomes residual + the sum of `part_sum`, both rounded to their type; returns out, the norm of that.

    x, residual, out: (tokens, hidden), contiguous, of one type; out may be x. Moves (size + 3) * x.nbytes.
    """
    if usable(x.device) and x.shape[1] <= WIDEST:
        return part_sum_norm_triton(x, others, rank, residual, norm, out, flags)
    if flags is not None:
        wait(flags, ends=False)
    return out.copy_(rank_sum_norm_torch(_parts(x, others, rank), residual, norm))


def part_sum_triton(x: Tensor, others: Tensor, rank: int, out: Tensor | None = None, flags: Flags | None = None) -> Tensor:
    """The kernel."""
    out = x if out is None else out
    assert out.shape == x.shape
    assert out.is_contiguous()
    if x.numel():
        _launch(x, others, rank, -(-x.numel() // CHUNK), CHUNK, None, None, out, flags)
    return out


def part_sum_norm_triton(
    x: Tensor, others: Tensor, rank: int, residual: Tensor, norm: NormWeights, out: Tensor, flags: Flags | None = None
) -> Tensor:
    """The kernel."""
    assert residual.shape == out.shape == x.shape
    assert residual.is_contiguous()
    assert out.is_contiguous()
    if x.numel():
        _launch(x, others, rank, x.shape[0], x.shape[1], residual, norm, out, flags)
    return out


def _launch(
    x: Tensor, others: Tensor, rank: int, rows: int, row: int, residual: Tensor | None, norm: NormWeights | None, out: Tensor,
    flags: Flags | None,
) -> None:  # fmt: skip
    assert x.is_contiguous()
    assert others.dtype == x.dtype
    assert others.shape[1:] == x.shape
    assert others[0].is_contiguous()
    assert flags is None or flags.words.shape == (1, others.shape[0] + 1)
    width = power_of_two(row)
    weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
    _part_sum.launch(
        (rows,), x, others, out, x if residual is None else residual, x if weight is None else weight, x if bias is None else bias,
        x if flags is None else flags.words, x if flags is None else flags.time, 0.0 if norm is None else norm.epsilon,
        others.stride(0), rank, x.numel(), row=row, width=width, size=others.shape[0] + 1, members=power_of_two(others.shape[0] + 1),
        normed=None if norm is None else norm.kind, weighted=weight is not None, biased=bias is not None, waits=flags is not None,
        strict=capability(x.device) >= (7, 0), num_warps=min(32, max(1, width // (32 * ELEMENTS))),
    )  # fmt: skip


def _parts(x: Tensor, others: Tensor, rank: int) -> list[Tensor]:
    return [*others[:rank], x, *others[rank:]]


@kernel("rank")
def _part_sum(
    x: Any, others: Any, out: Any, residual: Any, weight: Any, bias: Any, flags: Any, time: Any, epsilon: Any, apart: Any, rank: Any,
    total: Any, row: constexpr, width: constexpr, size: constexpr, members: constexpr, normed: constexpr, weighted: constexpr,
    biased: constexpr, waits: constexpr, strict: constexpr,
) -> None:  # fmt: skip
    """One row. Never begun before the launch ahead has ended: what it waits for is copies, its own of another stream too."""
    dtype: tl.constexpr = x.dtype.element_ty
    i = tl.arange(0, width)
    at = tl.program_id(0).to(tl.int64) * row + i
    real = i < row
    if normed is None:  # programs take chunks, of which the last may be short
        real = real & (at < total)
    own = tl.load(x + at, mask=real, other=0).to(tl.float32)
    if normed is not None:
        before = tl.load(residual + at, mask=real, other=0).to(tl.float32)
        if weighted:
            factor = tl.load(weight + i, mask=real, other=0).to(tl.float32)
        if biased:
            shift = tl.load(bias + i, mask=real, other=0).to(tl.float32)
    if waits:
        source = tl.arange(0, members)
        until(flags + source, (source < size) & (source != rank), tl.load(time), strict)
    value = own if rank == 0 else tl.load(others + at, mask=real, other=0).to(tl.float32)
    for peer in tl.static_range(1, size):
        # Of those behind this rank, one fewer lies before.
        other = peer - (rank < peer).to(tl.int64)
        part = tl.load(others + other * apart + at, mask=real & (peer != rank), other=0).to(tl.float32)
        value += tl.where(peer == rank, own, part)
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
