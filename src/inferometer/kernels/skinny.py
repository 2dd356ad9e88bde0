"""Linear maps of few rows: all that matters is how fast the weight is read, and that what follows costs no further launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.arrivals import MOST_ARRIVALS, arrivals, last_to_arrive
from inferometer.kernels.finish import finish, linear_torch
from inferometer.kernels.moments import Moments, centre_and_scale, put_moments
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.peaks import Peaks, peak
from inferometer.kernels.prefetch import prefetch_lines, prefetch_spans
from inferometer.kernels.skinny_launch import Tiling, members, tiling
from inferometer.kernels.skinny_rows import rows_product
from inferometer.kernels.support import capability, constexpr, kernel, power_of_two, processors, tl, usable, wide
from inferometer.model.spec import Activation


@dataclass(frozen=True, slots=True)
class Following:
    """What the next map but few reads: `lines` spans of `size` bytes of its weight, each `stride` bytes behind the one before."""

    weight: Tensor
    lines: int
    stride: int
    size: int
    late: bool

    @classmethod
    def of(cls, weight: Tensor, launch: Tiling, kib: int, late: bool) -> Following:
        """The first kib KiB of each program of that launch."""
        outputs, inputs = weight.shape
        line = inputs * weight.element_size()
        if launch.whole:
            stride = launch.span(outputs, processors(weight.device)) * line
            return cls(weight, weight.nbytes // stride, stride, min(stride, kib * 1024), late)
        parts = launch.parts(outputs, inputs, processors(weight.device))
        stride = line // parts // 16 * 16
        return cls(weight, outputs * parts, stride, min(stride, kib * 1024 // launch.outputs // 16 * 16), late)


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
    moments: Moments | None = None,
    following: Following | None = None,
) -> Tensor:
    """The kernels. launch: instead of what the table says. out: where the result goes, (rows, outputs) with a contiguous last dimension.

    norm: x is normed first, and rounded as a launch of its own would; only where the launch holds whole rows, or with moments.
    moments: where those of the result go, by tiles; of launches that do not hold whole rows.
    """
    (rows, inputs), outputs = x.shape, weight.shape[0]
    if out is None:
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    assert out.stride(1) == 1
    if rows == 0 or outputs == 0:
        return out
    chosen = launch or standard(rows, inputs, x.dtype)
    added = out if residual is None else residual
    assert added.stride(1) == 1
    options = {"biased": bias is not None, "added": residual is not None, "activation": activation}
    _product(x, weight, x if bias is None else bias, added, out, None, moments, following, chosen, norm, options)
    return out


def skinny_peaks(x: Tensor, weight: Tensor, launch: Tiling, norm: NormWeights | None = None) -> Peaks:
    """Of x weight^T, rounded to its type as `skinny` would, the peaks alone: what it would write is never in memory.

    norm: as in `skinny_triton`.
    """
    outputs = weight.shape[0]
    each = launch.span(outputs, processors(x.device)) if launch.whole else launch.outputs
    peaks = Peaks.of(x.shape[0], -(-outputs // each), x.device)
    _product(x, weight, x, x, x, peaks, None, None, launch, norm, {"biased": False, "added": False, "activation": None})
    return peaks


def _product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    added: Tensor,
    out: Tensor,
    peaks: Peaks | None,
    moments: Moments | None,
    following: Following | None,
    chosen: Tiling,
    norm: NormWeights | None,
    options: dict[str, Any],
) -> None:
    """Launches the kernel for so many rows, which writes either `out` or `peaks`."""
    (rows, inputs), outputs = x.shape, weight.shape[0]
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    tiles = -(-outputs // chosen.outputs)
    early = chosen.early and capability(x.device) >= (9, 0)
    line = inputs * x.element_size()
    # Spans to fetch begin at multiples of 16 bytes.
    fetched = early and line % 16 == 0 and weight.data_ptr() % 16 == 0
    beyond = (weight, 0, 0, 0, 0)
    if following is not None and fetched:
        soon, late = (0, following.lines) if following.late else (following.lines, 0)
        beyond = following.weight, soon, late, following.stride, following.size
    options = options | {
        "fetched": fetched, "threads": 32 * chosen.warps,
        "peaked": peaks is not None, "tile": chosen.outputs, "early": early,
        "num_warps": chosen.warps, "num_stages": chosen.stages,
    }  # fmt: skip
    if early:
        options["launch_pdl"] = True
    marks = (out, out, out) if peaks is None else (peaks.tops, peaks.ids, peaks.sums)
    common = x, weight, bias, added, out, *marks
    gamma, beta = (None, None) if norm is None else (norm.weight, norm.bias)
    normed = x if gamma is None else gamma, x if beta is None else beta, 0.0 if norm is None else norm.epsilon
    norm_options = {"normed": None if norm is None else norm.kind, "weighted": gamma is not None, "shifted": beta is not None}
    if chosen.whole:
        span = chosen.span(outputs, processors(x.device))
        rows_product.launch(
            (-(-outputs // span),), *common, *normed, rows, outputs, span, x.stride(0), added.stride(0), out.stride(0),
            chosen.ahead * 1024, *beyond, inputs=inputs, width=power_of_two(inputs), members=power_of_two(rows), **norm_options, **options,
        )  # fmt: skip
        return
    held = None if norm is None else norm.moments
    assert norm is None or held is not None
    seen = (x, x, 1) if held is None else (held.means, held.squares, held.span)
    left = (x, x) if moments is None else (moments.means, moments.squares)
    parts = chosen.parts(outputs, inputs, processors(x.device)) if tiles <= MOST_ARRIVALS else 1
    padded = members(rows)
    partial, arrived = out, out
    if parts > 1:
        partial = torch.empty((tiles, parts, chosen.outputs, padded), dtype=torch.float32, device=x.device)
        arrived = arrivals(x.device)
    _few.launch(
        (tiles, parts), *common, *normed, *seen, *left, partial, arrived, rows, outputs, inputs, x.stride(0), added.stride(0), out.stride(0),
        chosen.ahead * 1024, *beyond, members=padded, parts=parts, stages=chosen.stages, block=chosen.block,
        even=inputs % chosen.block == 0, wide=wide(x.dtype, x.device), measured=moments is not None, opened=chosen.opened,
        held=1 if held is None else power_of_two(held.means.shape[1]), **norm_options, **options,
    )  # fmt: skip


def standard(rows: int, inputs: int, dtype: torch.dtype) -> Tiling:
    """The tables are of 16-bit types; others get as many bytes."""
    found = tiling(rows, inputs)
    if found.whole:
        return replace(found, outputs=max(1, found.outputs * 2 // dtype.itemsize))
    return replace(found, block=found.block * 2 // dtype.itemsize)


@kernel("rows", "span", "ahead", "following", "soon", "late", "stride", "size")
def _few(
    x: Any, weight: Any, bias: Any, residual: Any, out: Any, tops: Any, ids: Any, sums: Any, gamma: Any, beta: Any, epsilon: Any,
    means: Any, squares: Any, span: Any, left_means: Any, left_squares: Any, partial: Any, arrived: Any, rows: Any, outputs: Any,
    inputs: Any, x_row: Any, residual_row: Any, out_row: Any, ahead: Any, following: Any, soon: Any, late: Any, stride: Any, size: Any,
    members: constexpr, parts: constexpr, tile: constexpr, block: constexpr, stages: constexpr, even: constexpr, held: constexpr,
    normed: constexpr, weighted: constexpr, shifted: constexpr, activation: constexpr, biased: constexpr, added: constexpr,
    peaked: constexpr, measured: constexpr, opened: constexpr, wide: constexpr, early: constexpr, fetched: constexpr, threads: constexpr,
) -> None:  # fmt: skip
    """Several rows, padded to those of a matrix product whose other side is the weight as it lies in memory.

    Where the inputs are cut into parts, the program that is the last to arrive at a tile adds them up, in their order. A norm takes the
    rows' moments as the launch that wrote them has left them: each program norms what it reads.
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
    share = tl.cdiv(tl.cdiv(inputs, block), parts) * block
    start = part * share
    stop = tl.minimum(start + share, inputs)
    products = tl.zeros([tile, members], tl.float32)
    if opened:
        k = start + lane
        opening = tl.load(weights + k[None, :], mask=(k < stop)[None, :], other=0, eviction_policy="evict_first")
    if early:
        # The kernel before may still write x and the residual, not the weight: what is read first comes into the cache.
        if fetched:
            item: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
            pieces: tl.constexpr = threads // tile if threads > tile else 1
            lane_of = tl.arange(0, pieces * tile)
            wanted_bytes = tl.minimum(ahead // tile, tl.maximum(stop - start, 0) * item)
            each = tl.cdiv(wanted_bytes, pieces * 16) * 16
            begin = lane_of // tile * each
            line_of = tl.minimum(column * tile + lane_of % tile, outputs - 1).to(tl.int64) * (inputs * item) + start * item + begin
            prefetch_spans(weight.to(tl.int64) + line_of, tl.maximum(tl.minimum(wanted_bytes - begin, each), 0) // 16 * 16)
            program, programs = part * tl.num_programs(0) + column, tl.num_programs(0) * tl.num_programs(1)
            prefetch_lines(following, soon, stride, size, program, programs, threads)
        tl.extra.cuda.gdc_wait()
    centre, scale = 0.0, 0.0
    if normed is not None:
        centre, scale = centre_and_scale(means, squares, m, m < rows, inputs, span, epsilon, held, normed)
        centre, scale = centre[None, :], scale[None, :]
    if opened:
        k = start + lane
        a = _states(states, k, m < rows, stop, gamma, beta, centre, scale, False, normed, weighted, shifted)
        if wide:
            opening = opening.to(tl.float32)
            a = a.to(tl.float32)
        products = tl.dot(opening, a, products, input_precision="ieee")
        start += block
    for base in tl.range(start, stop, block, num_stages=stages):
        k = base + lane
        if even:
            w = tl.load(weights + k[None, :], eviction_policy="evict_first")
        else:
            w = tl.load(weights + k[None, :], mask=(k < inputs)[None, :], other=0, eviction_policy="evict_first")
        a = _states(states, k, m < rows, inputs, gamma, beta, centre, scale, even, normed, weighted, shifted)
        if wide:
            w = w.to(tl.float32)
            a = a.to(tl.float32)
        products = tl.dot(w, a, products, input_precision="ieee")
    if early & fetched:
        program, programs = part * tl.num_programs(0) + column, tl.num_programs(0) * tl.num_programs(1)
        prefetch_lines(following, late, stride, size, program, programs, threads)
    # Outputs side by side, as the result is stored.
    value = tl.trans(products)
    n = column * tile + tl.arange(0, tile)[None, :]
    real = (m < rows)[:, None] & (n < outputs)
    last = True
    if parts > 1:
        here = partial + column.to(tl.int64) * (parts * tile * members) + m[:, None] * tile + tl.arange(0, tile)[None, :]
        wanted = tl.broadcast_to((m < rows)[:, None], (members, tile))
        tl.store(here + part * (tile * members), value, mask=wanted)
        last = last_to_arrive(arrived + column, parts)
    if last:
        if parts > 1:
            value = tl.zeros([members, tile], tl.float32)
            for other in tl.static_range(parts):
                # Not from the L1 cache: other processors have written them.
                value += tl.load(here + other * (tile * members), mask=wanted, other=0, cache_modifier=".cg")
        beside = residual + m[:, None] * residual_row + n
        bias_at = bias + tl.broadcast_to(n, (members, tile))
        rounded = finish(value, bias_at, beside, real, activation, biased, added, out.dtype.element_ty)
        if peaked:
            peak(rounded, n, real, m * tl.num_programs(0) + column, m < rows, tops, ids, sums)
        else:
            tl.store(out + m[:, None] * out_row + n, rounded, mask=real)
        if measured:
            count = tl.minimum(tile, outputs - column * tile)
            put_moments(rounded, real, count, m * tl.num_programs(0) + column, m < rows, left_means, left_squares)


@kernel()
def _states(
    states: Any, k: Any, wanted: Any, inputs: Any, gamma: Any, beta: Any, centre: Any, scale: Any, even: constexpr, normed: constexpr,
    weighted: constexpr, shifted: constexpr,
) -> Any:  # fmt: skip
    """Inputs k of the rows, (inputs, rows), normed if asked and rounded as the norm's own launch would."""
    if even:
        a = tl.load(states + k[:, None], mask=wanted[None, :], other=0)
    else:
        a = tl.load(states + k[:, None], mask=(k < inputs)[:, None] & wanted[None, :], other=0)
    if normed is not None:
        value = (a.to(tl.float32) - centre) * scale
        if weighted:
            value = value * tl.load(gamma + k, mask=k < inputs, other=0).to(tl.float32)[:, None]
        if shifted:
            value = value + tl.load(beta + k, mask=k < inputs, other=0).to(tl.float32)[:, None]
        a = value.to(a.dtype)
    return a
