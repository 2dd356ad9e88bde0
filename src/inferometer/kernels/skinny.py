"""Linear maps of few rows: all that matters is how fast the weight is read, and that what follows costs no further launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.arrivals import MOST_ARRIVALS, arrivals
from inferometer.kernels.finish import beside_product, linear_torch, put_product
from inferometer.kernels.head_parts import HeadParts
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.peaks import Peaks
from inferometer.kernels.prefetch import prefetch
from inferometer.kernels.skinny_launch import Tiling, members, tiling
from inferometer.kernels.skinny_rows import rows_product
from inferometer.kernels.support import capability, constexpr, kernel, power_of_two, processors, tl, usable, wide
from inferometer.model.spec import Activation


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
    return linear_torch(x, weight, bias, activation=activation, residual=residual)


def skinny_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    norm: NormWeights | None = None,
    launch: Tiling | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The kernels. launch: instead of what the table says. out: where the result goes, (rows, outputs) with a contiguous last dimension.

    norm: x is normed first, and rounded as a launch of its own would; only where the launch holds whole rows.
    """
    rows, outputs = x.shape[0], weight.shape[0]
    if out is None:
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    assert out.stride(1) == 1
    if rows == 0 or outputs == 0:
        return out
    chosen = launch or standard(rows, weight, x.dtype)
    added = out if residual is None else residual
    assert added.stride(1) == 1
    options = {"biased": bias is not None, "added": residual is not None, "activation": activation}
    _product(x, weight, x if bias is None else bias, added, out, None, chosen, norm, options)
    return out


def skinny_joined(parts: HeadParts, weight: Tensor, bias: Tensor | None, residual: Tensor, launch: Tiling) -> Tensor:
    """`skinny` of one row of attention that is still in parts, which every program joins. launch: one that holds whole rows.

    residual: (1, outputs), contiguous. Heads and their size are powers of two.
    """
    assert launch.whole
    assert parts.rows == 1
    assert residual.is_contiguous()
    out = torch.empty_like(residual)
    options = {"biased": bias is not None, "added": True, "activation": None}
    _product(parts.partial[:, 0].flatten(1), weight, out if bias is None else bias, residual, out, None, launch, None, options, parts)
    return out


def skinny_peaks(x: Tensor, weight: Tensor, launch: Tiling, norm: NormWeights | None = None) -> Peaks:
    """Of x weight^T, rounded to its type as `skinny` would, the peaks alone: what it would write is never in memory.

    norm: as in `skinny_triton`.
    """
    outputs = weight.shape[0]
    each = launch.span(outputs, processors(x.device)) if launch.whole else launch.outputs
    peaks = Peaks.of(x.shape[0], -(-outputs // each), x.device)
    _product(x, weight, x, x, x, peaks, launch, norm, {"biased": False, "added": False, "activation": None})
    return peaks


def _product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    added: Tensor,
    out: Tensor,
    peaks: Peaks | None,
    chosen: Tiling,
    norm: NormWeights | None,
    options: dict[str, Any],
    parted: HeadParts | None = None,
) -> None:
    """Launches the kernel for so many rows, which writes either `out` or `peaks`."""
    (rows, inputs), outputs = x.shape, weight.shape[0]
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    tiles = -(-outputs // chosen.outputs)
    early = chosen.early and capability(x.device) >= (9, 0)
    options = options | {
        "peaked": peaks is not None, "tile": chosen.outputs, "early": early,
        "num_warps": chosen.warps, "num_stages": chosen.stages,
    }  # fmt: skip
    if early:
        options["launch_pdl"] = True
    marks = (out, out, out) if peaks is None else (peaks.tops, peaks.ids, peaks.sums)
    common = x, weight, bias, added, out, *marks
    if chosen.whole:
        span = chosen.span(outputs, processors(x.device))
        gamma, beta = (None, None) if norm is None else (norm.weight, norm.bias)
        joined = {"parts": 0, "keys": 0, "head_size": 0}
        if parted is not None:
            joined = {"parts": parted.parts, "keys": parted.keys, "head_size": parted.head_size}
        rows_product.launch(
            (-(-outputs // span),), *common, x if gamma is None else gamma, x if beta is None else beta,
            x if parted is None else parted.mass, x if parted is None else parted.contexts, 0.0 if norm is None else norm.epsilon,
            rows, outputs, span, x.stride(0), added.stride(0), out.stride(0), inputs=inputs, width=power_of_two(inputs),
            members=power_of_two(rows), normed=None if norm is None else norm.kind, weighted=gamma is not None, shifted=beta is not None,
            **joined, **options,
        )  # fmt: skip
        return
    assert norm is None
    parts = chosen.parts(outputs, inputs, processors(x.device)) if tiles <= MOST_ARRIVALS else 1
    padded = members(rows)
    partial, arrived = out, out
    if parts > 1:
        partial = torch.empty((tiles, parts, chosen.outputs, padded), dtype=torch.float32, device=x.device)
        arrived = arrivals(x.device)
    _few.launch(
        (tiles, parts), *common, partial, arrived, rows, outputs, inputs, x.stride(0), added.stride(0), out.stride(0), members=padded,
        parts=parts, stages=chosen.stages, block=chosen.block, even=inputs % chosen.block == 0, wide=wide(x.dtype, x.device), **options,
    )  # fmt: skip


def standard(rows: int, weight: Tensor, dtype: torch.dtype) -> Tiling:
    """What the tables say of x (rows, inputs) in `dtype`. They are of 16-bit types; others get as many bytes."""
    outputs, inputs = weight.shape
    found = tiling(rows, outputs, inputs, processors(weight.device))
    if found.whole:
        return replace(found, outputs=max(1, found.outputs * 2 // dtype.itemsize))
    return replace(found, block=found.block * 2 // dtype.itemsize)


@kernel("rows")
def _few(
    x: Any, weight: Any, bias: Any, residual: Any, out: Any, tops: Any, ids: Any, sums: Any, partial: Any, arrived: Any, rows: Any,
    outputs: Any, inputs: Any, x_row: Any, residual_row: Any, out_row: Any, members: constexpr, parts: constexpr, tile: constexpr,
    block: constexpr, stages: constexpr, even: constexpr, activation: constexpr, biased: constexpr, added: constexpr, peaked: constexpr,
    wide: constexpr, early: constexpr,
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
    shift = 0.0
    if biased:
        across = column * tile + tl.arange(0, tile)[None, :]
        shift = tl.load(bias + across, mask=across < outputs, other=0)
    if early:
        # The kernel before may still write x and the residual, not the weight: what the first iterations read comes into the cache.
        line: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
        for stage in tl.static_range(stages + 1):
            further = start + stage * block + tl.arange(0, block // line) * line
            prefetch(weights + tl.minimum(further, inputs - 1)[None, :])
        tl.extra.cuda.gdc_wait()
    beside = beside_product(residual, residual_row, rows, outputs, column, members, tile, added)
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
    put_product(
        tl.trans(products), shift, beside, out, tops, ids, sums, partial, arrived, rows, outputs, out_row, column, part, members, tile,
        parts, activation, biased, added, peaked,
    )  # fmt: skip
