"""Linear maps of few rows: all that matters is how fast the weight is read, and that what follows costs no further launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.activation import ACTIVATIONS, activate
from inferometer.kernels.skinny_launch import Tiling, members, tiling
from inferometer.kernels.support import capability, constexpr, kernel, processors, tl, usable, wide
from inferometer.kernels.token_choice import finite, score_of
from inferometer.model.spec import Activation

MOST_TILES = 1 << 16
"""Tiles of outputs whose inputs may be cut; beyond, they fill every card by themselves."""


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


def skinny(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: Activation | None = None, residual: Tensor | None = None
) -> Tensor:
    """activation(x weight^T + bias) + residual, each rounded to the type of x as separate operations would.

    x: (rows, inputs); residual: (rows, outputs); both with a contiguous last dimension. weight: (outputs, inputs), contiguous.
    bias: (outputs,). All of one type. Returns (rows, outputs), contiguous.

    Moves outputs * inputs elements of the weight once, and rows * (inputs + outputs) of x and the result (as many again of a
    residual). Sums are taken in float32, in an order that depends on the launch alone: equal launches give equal bits. Launches on
    one device must follow each other, as they do in a stream: they share its counters.
    """
    if usable(x.device):
        return skinny_triton(x, weight, bias, activation=activation, residual=residual)
    return skinny_torch(x, weight, bias, activation=activation, residual=residual)


def skinny_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: Activation | None = None, residual: Tensor | None = None
) -> Tensor:
    """The reference."""
    out = functional.linear(x, weight, bias)
    if activation is not None:
        out = ACTIVATIONS[activation](out)
    return out if residual is None else residual + out


def skinny_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    launch: Tiling | None = None,
) -> Tensor:
    """The kernels. launch: instead of what the table says."""
    (rows, inputs), outputs = x.shape, weight.shape[0]
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if rows == 0 or outputs == 0:
        return out
    chosen = launch or standard(rows, outputs, inputs, x.dtype)
    added = out if residual is None else residual
    assert added.stride(1) == 1
    options = {"biased": bias is not None, "added": residual is not None, "activation": activation}
    _product(x, weight, x if bias is None else bias, added, out, None, chosen, options)
    return out


def skinny_peaks(x: Tensor, weight: Tensor, launch: Tiling) -> Peaks:
    """Of x weight^T, rounded to its type as `skinny` would, the peaks alone: what it would write is never in memory."""
    peaks = Peaks.of(x.shape[0], weight.shape[0], launch, x.device)
    _product(x, weight, x, x, x, peaks, launch, {"biased": False, "added": False, "activation": None})
    return peaks


def _product(
    x: Tensor, weight: Tensor, bias: Tensor, added: Tensor, out: Tensor, peaks: Peaks | None, chosen: Tiling, options: dict[str, Any]
) -> None:
    """Launches the kernel for so many rows, which writes either `out` or `peaks`."""
    (rows, inputs), outputs = x.shape, weight.shape[0]
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    tiles = -(-outputs // chosen.outputs)
    early = chosen.early and capability(x.device) >= (9, 0)
    options = options | {
        "peaked": peaks is not None, "tile": chosen.outputs, "block": chosen.block, "even": inputs % chosen.block == 0, "early": early,
        "num_warps": chosen.warps, "num_stages": chosen.stages,
    }  # fmt: skip
    if early:
        options["launch_pdl"] = True
    marks = (out, out, out) if peaks is None else (peaks.tops, peaks.ids, peaks.sums)
    common = x, weight, bias, added, out, *marks
    if rows == 1:
        _one.launch((tiles,), *common, outputs, inputs, **options)
        return
    parts = chosen.parts(outputs, inputs, processors(x.device)) if tiles <= MOST_TILES else 1
    padded = members(rows)
    partial, arrived = out, out
    if parts > 1:
        partial = torch.empty((tiles, parts, chosen.outputs, padded), dtype=torch.float32, device=x.device)
        arrived = counters(x.device)
    _few.launch(
        (tiles, parts), *common, partial, arrived, rows, outputs, inputs, x.stride(0), added.stride(0), members=padded, parts=parts,
        stages=chosen.stages, wide=wide(x.dtype, x.device), **options,
    )  # fmt: skip


def standard(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> Tiling:
    """The table is of 16-bit types; others get as many bytes."""
    found = tiling(rows, outputs, inputs)
    return replace(found, block=found.block * 2 // dtype.itemsize)


@lru_cache
def counters(device: torch.device) -> Tensor:
    """int32 (MOST_TILES,), zeros between launches: how many parts of each tile have been summed up in this one."""
    return torch.zeros(MOST_TILES, dtype=torch.int32, device=device)


@kernel()
def _finish(
    value: Any, bias: Any, residual: Any, real: Any, activation: constexpr, biased: constexpr, added: constexpr, dtype: constexpr,
) -> Any:  # fmt: skip
    """What follows the product, rounded after each step as separate operations would. bias, residual: addresses like `value`."""
    if biased:
        value += tl.load(bias, mask=real, other=0).to(tl.float32)
    value = value.to(dtype)
    if activation is not None:
        value = activate(value.to(tl.float32), activation, dtype).to(dtype)
    if added:
        value = (tl.load(residual, mask=real, other=0).to(tl.float32) + value.to(tl.float32)).to(dtype)
    return value


@kernel()
def _peak(value: Any, n: Any, real: Any, at: Any, wanted: Any, tops: Any, ids: Any, sums: Any, axis: constexpr) -> None:
    """Stores the best of a tile's values along an axis, its output, and the sum of their exponentials."""
    score = tl.where(real, score_of(value), float("-inf"))
    top = tl.max(score, axis)
    across = tl.expand_dims(top, axis)
    tl.store(tops + at, top, mask=wanted)
    tl.store(ids + at, tl.min(tl.where(score == across, n, 2147483647), axis), mask=wanted)
    tl.store(sums + at, tl.sum(tl.exp(score - finite(across)), axis), mask=wanted)


@kernel()
def _one(
    x: Any, weight: Any, bias: Any, residual: Any, out: Any, tops: Any, ids: Any, sums: Any, outputs: Any, inputs: Any, tile: constexpr,
    block: constexpr, even: constexpr, activation: constexpr, biased: constexpr, added: constexpr, peaked: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One row. Every thread sums up its own inputs until the end, so that nothing in the loop waits for another; the weights of the
    next iteration come while those of this one are multiplied."""
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    n = tl.program_id(0) * tile + tl.arange(0, tile)
    # Behind the last output the last one is read again: a mask would be asked for every load.
    rows = weight + tl.minimum(n, outputs - 1).to(tl.int64)[:, None] * inputs
    lane = tl.arange(0, block)
    products = tl.zeros([tile, block], tl.float32)
    if even:
        w = tl.load(rows + lane[None, :], eviction_policy="evict_first")
    else:
        w = tl.load(rows + lane[None, :], mask=(lane < inputs)[None, :], other=0, eviction_policy="evict_first")
    if early:
        # The kernel before may still write x and the residual, not the weight.
        tl.extra.cuda.gdc_wait()
    for base in tl.range(0, inputs, block, num_stages=1):
        k = base + lane
        if even:
            a = tl.load(x + k, eviction_policy="evict_last")
            there = tl.full([1, block], base + block < inputs, tl.int1)
        else:
            a = tl.load(x + k, mask=k < inputs, other=0, eviction_policy="evict_last")
            there = (k + block < inputs)[None, :]
        following = tl.load(rows + (k + block)[None, :], mask=there, other=0, eviction_policy="evict_first")
        products += w.to(tl.float32) * a.to(tl.float32)[None, :]
        w = following
    real = n < outputs
    value = _finish(tl.sum(products, 1), bias + n, residual + n, real, activation, biased, added, out.dtype.element_ty)
    if peaked:
        _peak(value[None, :], n[None, :], real[None, :], tl.program_id(0) + tl.arange(0, 1), True, tops, ids, sums, 1)
    else:
        tl.store(out + n, value, mask=real)


@kernel("rows")
def _few(
    x: Any, weight: Any, bias: Any, residual: Any, out: Any, tops: Any, ids: Any, sums: Any, partial: Any, arrived: Any, rows: Any,
    outputs: Any, inputs: Any, x_row: Any, residual_row: Any, members: constexpr, parts: constexpr, tile: constexpr, block: constexpr,
    stages: constexpr, even: constexpr, activation: constexpr, biased: constexpr, added: constexpr, peaked: constexpr, wide: constexpr,
    early: constexpr,
) -> None:  # fmt: skip
    """Several rows, padded to those of a matrix product whose other side is the weight as it lies in memory.

    Where the inputs are cut into parts, the program that is the last to arrive at a tile adds them up, in their order.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.program_id(0)
    part = tl.program_id(1)
    n = column * tile + tl.arange(0, tile)
    m = tl.arange(0, members)
    lane = tl.arange(0, block)
    weights = weight + tl.minimum(n, outputs - 1).to(tl.int64)[:, None] * inputs
    states = x + m[None, :] * x_row
    span = tl.cdiv(tl.cdiv(inputs, block), parts) * block
    start = part * span
    stop = tl.minimum(start + span, inputs)
    products = tl.zeros([tile, members], tl.float32)
    if early:
        # The kernel before may still write x and the residual, not the weight: what the first iterations read comes into the cache.
        line: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
        for stage in tl.static_range(stages):
            ahead = start + stage * block + tl.arange(0, block // line) * line
            _prefetch(weights + tl.minimum(ahead, inputs - 1)[None, :])
        tl.extra.cuda.gdc_wait()
    for base in tl.range(start, stop, block, num_stages=stages):
        k = base + lane
        if even:
            w = tl.load(weights + k[None, :], eviction_policy="evict_first")
            a = tl.load(states + k[:, None], mask=(m < rows)[None, :], other=0)
        else:
            w = tl.load(weights + k[None, :], mask=(k < inputs)[None, :], other=0, eviction_policy="evict_first")
            a = tl.load(states + k[:, None], mask=(k < inputs)[:, None] & (m < rows)[None, :], other=0)
        if wide:
            w = w.to(tl.float32)
            a = a.to(tl.float32)
        products = tl.dot(w, a, products, input_precision="ieee")
    # Outputs side by side, as the result is stored.
    value = tl.trans(products)
    n = column * tile + tl.arange(0, tile)[None, :]
    real = (m < rows)[:, None] & (n < outputs)
    last = True
    if parts > 1:
        here = partial + column.to(tl.int64) * (parts * tile * members) + m[:, None] * tile + tl.arange(0, tile)[None, :]
        wanted = tl.broadcast_to((m < rows)[:, None], (members, tile))
        tl.store(here + part * (tile * members), value, mask=wanted)
        # All threads have written before one says so.
        tl.debug_barrier()
        last = tl.atomic_add(arrived + column, 1, sem="acq_rel", scope="gpu") == parts - 1
    if last:
        if parts > 1:
            tl.store(arrived + column, 0)
            value = tl.zeros([members, tile], tl.float32)
            for other in tl.static_range(parts):
                # Not from the L1 cache: other processors have written them.
                value += tl.load(here + other * (tile * members), mask=wanted, other=0, cache_modifier=".cg")
        beside = residual + m[:, None] * residual_row + n
        bias_at = bias + tl.broadcast_to(n, (members, tile))
        rounded = _finish(value, bias_at, beside, real, activation, biased, added, out.dtype.element_ty)
        if peaked:
            _peak(rounded, n, real, m * tl.num_programs(0) + column, m < rows, tops, ids, sums, 1)
        else:
            tl.store(out + m[:, None] * outputs + n, rounded, mask=real)


@kernel()
def _prefetch(addresses: Any) -> Any:
    """Brings the cache lines of these addresses into the L2 cache, and waits for nothing."""
    tl.inline_asm_elementwise(
        "{prefetch.global.L2 [$1]; mov.u32 $0, 0;}", "=r,l", [addresses.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )
