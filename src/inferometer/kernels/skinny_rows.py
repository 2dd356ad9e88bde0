"""The kernel for one to four rows: a multiplication and a sum for each weight and row."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.decode_parts import joined_row
from inferometer.kernels.finish import finish
from inferometer.kernels.norm import standardised
from inferometer.kernels.peaks import joined, merged
from inferometer.kernels.support import constexpr, kernel, tl
from inferometer.kernels.token_choice import score_of


@kernel("span", "rows", "contexts")
def rows_product(
    x: Any, weight: Any, bias: Any, residual: Any, out: Any, tops: Any, ids: Any, sums: Any, gamma: Any, beta: Any, mass: Any,
    contexts: Any, epsilon: Any, rows: Any, outputs: Any, span: Any, x_row: Any, residual_row: Any, out_row: Any, inputs: constexpr,
    width: constexpr, members: constexpr, tile: constexpr, normed: constexpr, weighted: constexpr, shifted: constexpr,
    activation: constexpr, biased: constexpr, added: constexpr, peaked: constexpr, early: constexpr, parts: constexpr, keys: constexpr,
    head_size: constexpr,
) -> None:  # fmt: skip
    """Each program holds all rows in registers, normed if asked, and takes `span` outputs, a tile at a time.

    The weights of the next tile come while those of this one are summed up, and those of the first while the launch ahead ends.
    members: 1, 2 or 4, not below the number of rows; the last row stands in for those that are not there.
    parts: if not 0, x is one row of attention in so many parts of `keys` keys, with their masses, which are joined first.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    first = tl.program_id(0) * span
    stop = tl.minimum(first + span, outputs)
    k = tl.arange(0, width)
    real = k < inputs
    n = first + tl.arange(0, tile)
    # Behind the last output the last one is read again: what is masked is the row's end alone.
    lines = weight + tl.minimum(n, outputs - 1).to(tl.int64)[:, None] * inputs + k[None, :]
    w = tl.load(lines, mask=real[None, :], other=0, eviction_policy="evict_first")
    factor, shift = 1.0, 0.0
    if weighted:
        factor = tl.load(gamma + k, mask=real, other=0).to(tl.float32)
    if shifted:
        shift = tl.load(beta + k, mask=real, other=0).to(tl.float32)
    if parts:
        context = tl.load(contexts)
    if early:
        # The kernel before may still write x and the residual, not the weights.
        tl.extra.cuda.gdc_wait()
    last = rows - 1
    if parts:
        x0 = joined_row(x, mass, context, parts, keys, inputs // head_size, head_size)
    else:
        x0 = whole_row(x, k, real, factor, shift, epsilon, inputs, normed)
    if members > 1:
        x1 = whole_row(x + tl.minimum(1, last) * x_row, k, real, factor, shift, epsilon, inputs, normed)
    if members > 2:
        x2 = whole_row(x + tl.minimum(2, last) * x_row, k, real, factor, shift, epsilon, inputs, normed)
        x3 = whole_row(x + tl.minimum(3, last) * x_row, k, real, factor, shift, epsilon, inputs, normed)
    best0, place0, total0 = no_peak(tile)
    best1, place1, total1 = no_peak(tile)
    best2, place2, total2 = no_peak(tile)
    best3, place3, total3 = no_peak(tile)
    for base in tl.range(first, stop, tile, num_stages=1):
        n = base + tl.arange(0, tile)
        lines = weight + tl.minimum(n + tile, outputs - 1).to(tl.int64)[:, None] * inputs + k[None, :]
        following = tl.load(lines, mask=real[None, :] & (base + tile < stop), other=0, eviction_policy="evict_first")
        wide = w.to(tl.float32)
        ours = n < stop
        value = outcome(wide, x0, bias, residual, n, ours, activation, biased, added, out.dtype.element_ty)
        best0, place0, total0 = put(value, out, n, ours, best0, place0, total0, peaked)
        if members > 1:
            ours = (n < stop) & (rows > 1)
            value = outcome(wide, x1, bias, residual + residual_row, n, ours, activation, biased, added, out.dtype.element_ty)
            best1, place1, total1 = put(value, out + out_row, n, ours, best1, place1, total1, peaked)
        if members > 2:
            ours = (n < stop) & (rows > 2)
            value = outcome(wide, x2, bias, residual + 2 * residual_row, n, ours, activation, biased, added, out.dtype.element_ty)
            best2, place2, total2 = put(value, out + 2 * out_row, n, ours, best2, place2, total2, peaked)
            ours = (n < stop) & (rows > 3)
            value = outcome(wide, x3, bias, residual + 3 * residual_row, n, ours, activation, biased, added, out.dtype.element_ty)
            best3, place3, total3 = put(value, out + 3 * out_row, n, ours, best3, place3, total3, peaked)
        w = following
    if peaked:
        leave(best0, place0, total0, 0, rows, tops, ids, sums)
        if members > 1:
            leave(best1, place1, total1, 1, rows, tops, ids, sums)
        if members > 2:
            leave(best2, place2, total2, 2, rows, tops, ids, sums)
            leave(best3, place3, total3, 3, rows, tops, ids, sums)


@kernel()
def whole_row(
    x: Any, k: Any, real: Any, factor: Any, shift: Any, epsilon: Any, inputs: constexpr, normed: constexpr,
) -> Any:  # fmt: skip
    """A row, normed if asked and rounded as the norm's own launch would."""
    row = tl.load(x + k, mask=real, other=0)
    if normed is not None:
        value = standardised(row.to(tl.float32), real, inputs, epsilon, normed == "layer")
        row = (value * factor + shift).to(row.dtype)
    return row


@kernel()
def outcome(
    w: Any, x: Any, bias: Any, residual: Any, n: Any, real: Any, activation: constexpr, biased: constexpr, added: constexpr,
    dtype: constexpr,
) -> Any:  # fmt: skip
    """Outputs n of one row from weights w (tile, width), with all that follows the product."""
    return finish(tl.sum(w * x.to(tl.float32)[None, :], 1), bias + n, residual + n, real, activation, biased, added, dtype)


@kernel()
def no_peak(tile: constexpr) -> Any:
    """The peak of nothing, lane by lane."""
    return tl.full([tile], float("-inf"), tl.float32), tl.zeros([tile], tl.int32), tl.zeros([tile], tl.float32)


@kernel()
def put(value: Any, out: Any, n: Any, real: Any, best: Any, place: Any, total: Any, peaked: constexpr) -> Any:
    """Outputs n of one row: written, or taken into the peak of the lanes, which is returned."""
    if peaked:
        score = tl.where(real, score_of(value), float("-inf"))
        best, place, total = merged(best, place, total, score, n, 1.0)
    else:
        tl.store(out + n, value, mask=real)
    return best, place, total


@kernel()
def leave(best: Any, place: Any, total: Any, row: Any, rows: Any, tops: Any, ids: Any, sums: Any) -> None:
    """Stores the peak of all outputs of a program for one row."""
    top, first, mass = joined(best, place, total)
    at = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(tops + at, top, mask=row < rows)
    tl.store(ids + at, first, mask=row < rows)
    tl.store(sums + at, mass, mask=row < rows)
