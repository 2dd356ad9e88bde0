"""The kernel for one to four rows: a multiplication and a sum for each weight and row."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.finish import finish
from inferometer.kernels.peaks import peak
from inferometer.kernels.support import constexpr, kernel, tl


@kernel("span", "rows")
def rows_product(
    x: Any, weight: Any, bias: Any, residual: Any, out: Any, tops: Any, ids: Any, sums: Any, gamma: Any, beta: Any, epsilon: Any,
    rows: Any, outputs: Any, span: Any, x_row: Any, residual_row: Any, out_row: Any, inputs: constexpr, width: constexpr,
    members: constexpr, tile: constexpr, normed: constexpr, weighted: constexpr, shifted: constexpr, activation: constexpr,
    biased: constexpr, added: constexpr, peaked: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """Each program holds all rows in registers, normed if asked, and takes `span` outputs, a tile at a time.

    The weights of the next tile come while those of this one are summed up, and those of the first while the launch ahead ends.
    members: 1, 2 or 4, not below the number of rows; the last row stands in for those that are not there.
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
    if early:
        # The kernel before may still write x and the residual, not the weights.
        tl.extra.cuda.gdc_wait()
    last = rows - 1
    x0 = whole_row(x, k, real, factor, shift, epsilon, inputs, normed)
    if members > 1:
        x1 = whole_row(x + tl.minimum(1, last) * x_row, k, real, factor, shift, epsilon, inputs, normed)
    if members > 2:
        x2 = whole_row(x + tl.minimum(2, last) * x_row, k, real, factor, shift, epsilon, inputs, normed)
        x3 = whole_row(x + tl.minimum(3, last) * x_row, k, real, factor, shift, epsilon, inputs, normed)
    for base in tl.range(first, stop, tile, num_stages=1):
        n = base + tl.arange(0, tile)
        lines = weight + tl.minimum(n + tile, outputs - 1).to(tl.int64)[:, None] * inputs + k[None, :]
        following = tl.load(lines, mask=real[None, :] & (base + tile < stop), other=0, eviction_policy="evict_first")
        wide = w.to(tl.float32)
        at = base // tile
        tiles = tl.cdiv(outputs, tile)
        put(wide, x0, out, bias, residual, n, n < stop, tops, ids, sums, at, True, activation, biased, added, peaked)
        if members > 1:
            out1, residual1, more = out + out_row, residual + residual_row, rows > 1
            put(wide, x1, out1, bias, residual1, n, n < stop, tops, ids, sums, at + tiles, more, activation, biased, added, peaked)
        if members > 2:
            out2, residual2, more = out + 2 * out_row, residual + 2 * residual_row, rows > 2
            put(wide, x2, out2, bias, residual2, n, n < stop, tops, ids, sums, at + 2 * tiles, more, activation, biased, added, peaked)
            out3, residual3, more = out + 3 * out_row, residual + 3 * residual_row, rows > 3
            put(wide, x3, out3, bias, residual3, n, n < stop, tops, ids, sums, at + 3 * tiles, more, activation, biased, added, peaked)
        w = following


@kernel()
def whole_row(
    x: Any, k: Any, real: Any, factor: Any, shift: Any, epsilon: Any, inputs: constexpr, normed: constexpr,
) -> Any:  # fmt: skip
    """A row, normed if asked and rounded as the norm's own launch would."""
    row = tl.load(x + k, mask=real, other=0)
    if normed is not None:
        value = row.to(tl.float32)
        if normed == "layer":
            value = tl.where(real, value - tl.sum(value, 0) / inputs, 0.0)
        value = value * tl.rsqrt(tl.sum(value * value, 0) / inputs + epsilon)
        row = (value * factor + shift).to(row.dtype)
    return row


@kernel()
def put(
    w: Any, x: Any, out: Any, bias: Any, residual: Any, n: Any, real: Any, tops: Any, ids: Any, sums: Any, at: Any, wanted: Any,
    activation: constexpr, biased: constexpr, added: constexpr, peaked: constexpr,
) -> None:  # fmt: skip
    """Outputs n of one row from weights w (tile, width): written, or the best of them."""
    value = finish(
        tl.sum(w * x.to(tl.float32)[None, :], 1), bias + n, residual + n, real & wanted, activation, biased, added, out.dtype.element_ty
    )
    if peaked:
        peak(value[None, :], n[None, :], real[None, :], at + tl.arange(0, 1), wanted, tops, ids, sums)
    else:
        tl.store(out + n, value, mask=real & wanted)
