"""The kernel for one to four rows and a weight in few bits: integer dot products with rows in fixed point."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.decode_parts import joined_row
from inferometer.kernels.eight_bit_floats import dot_floats
from inferometer.kernels.finish import finish
from inferometer.kernels.fixed_point import bytes_together, dot_bytes, fixed_point, four
from inferometer.kernels.prefetch import prefetch
from inferometer.kernels.skinny_rows import leave, no_peak, put, whole_row
from inferometer.kernels.support import constexpr, kernel, tl


@kernel("span", "rows", "contexts")
def quant_rows_product(
    x: Any, words: Any, scale: Any, zero: Any, bias: Any, residual: Any, out: Any, tops: Any, ids: Any, sums: Any, gamma: Any, beta: Any,
    mass: Any, contexts: Any, epsilon: Any, rows: Any, outputs: Any, span: Any, x_row: Any, residual_row: Any, out_row: Any,
    inputs: constexpr, kind: constexpr, group: constexpr, zeroed: constexpr, width: constexpr, members: constexpr, tile: constexpr,
    normed: constexpr, weighted: constexpr, shifted: constexpr, activation: constexpr, biased: constexpr, added: constexpr,
    peaked: constexpr, assembled: constexpr, stages: constexpr, early: constexpr, parts: constexpr, keys: constexpr, head_size: constexpr,
) -> None:  # fmt: skip
    """Each program holds all rows, normed if asked, in fixed point, and takes `span` outputs, a tile at a time.

    words: the weight in words of 32 bits. Four are a chunk, which one thread reads and which shares a scale of the rows' and is part of
    one group of the weight's. Otherwise as `rows_product`.

    Nothing here is permuted: what is summed over lies in neighbouring lanes, then in neighbouring warps. Triton 3.6 adds up other lanes
    or warps than it should where a tensor of more sizes has been folded so that those of the sum are dealt out in another order.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    each: constexpr = 8 if kind == "int4" else 4
    first = tl.program_id(0) * span
    stop = tl.minimum(first + span, outputs)
    w, s, z = load_tile(words, scale, zero, first, stop, outputs, inputs, each, group, zeroed, width, tile)
    k = tl.arange(0, width * each)
    real = k < inputs
    factor, shift = 1.0, 0.0
    if weighted:
        factor = tl.load(gamma + k, mask=real, other=0).to(tl.float32)
    if shifted:
        shift = tl.load(beta + k, mask=real, other=0).to(tl.float32)
    if parts:
        context = tl.load(contexts)
    if early:
        # The kernel before may still write x and the residual, not the weights. What follows the first tile comes into the
        # cache.
        across: constexpr = inputs // each
        row_lines: constexpr = (width + 31) // 32
        for stage in tl.static_range(1, stages):
            later = tl.minimum(first + stage * tile + tl.arange(0, tile), stop - 1).to(tl.int64)[:, None] * across
            prefetch(words + later + tl.minimum(tl.arange(0, row_lines) * 32, across - 1)[None, :])
        # What ends an output is asked for as it ends: the first of a line would wait for the memory.
        if kind != "int4":
            prefetch(scale + tl.minimum(first + tl.arange(0, 16) * 32, stop - 1))
        if biased:
            prefetch(bias + tl.minimum(first + tl.arange(0, 8) * 64, stop - 1))
        tl.extra.cuda.gdc_wait()
    last = rows - 1
    if parts:
        row0 = joined_row(x, mass, context, parts, keys, inputs // head_size, head_size)
    else:
        row0 = whole_row(x, k, real, factor, shift, epsilon, inputs, normed)
    ready0 = ready(row0, kind, width, assembled)
    if members > 1:
        row1 = whole_row(x + tl.minimum(1, last) * x_row, k, real, factor, shift, epsilon, inputs, normed)
        ready1 = ready(row1, kind, width, assembled)
    if members > 2:
        row2 = whole_row(x + tl.minimum(2, last) * x_row, k, real, factor, shift, epsilon, inputs, normed)
        ready2 = ready(row2, kind, width, assembled)
        row3 = whole_row(x + tl.minimum(3, last) * x_row, k, real, factor, shift, epsilon, inputs, normed)
        ready3 = ready(row3, kind, width, assembled)
    best0, place0, total0 = no_peak(tile)
    best1, place1, total1 = no_peak(tile)
    best2, place2, total2 = no_peak(tile)
    best3, place3, total3 = no_peak(tile)
    dtype: constexpr = out.dtype.element_ty
    for base in tl.range(first, stop, tile, num_stages=1):
        n = base + tl.arange(0, tile)
        w1, s1, z1 = load_tile(words, scale, zero, base + tile, stop, outputs, inputs, each, group, zeroed, width, tile)
        whole = 1.0
        if kind != "int4":
            whole = tl.load(scale + tl.minimum(n, outputs - 1))
        ours = n < stop
        value = product(w, s, z, ready0, kind, zeroed, assembled) * whole
        value = finish(value, bias + n, residual + n, ours, activation, biased, added, dtype)
        best0, place0, total0 = put(value, out, n, ours, best0, place0, total0, peaked)
        if members > 1:
            ours = (n < stop) & (rows > 1)
            value = product(w, s, z, ready1, kind, zeroed, assembled) * whole
            value = finish(value, bias + n, residual + residual_row + n, ours, activation, biased, added, dtype)
            best1, place1, total1 = put(value, out + out_row, n, ours, best1, place1, total1, peaked)
        if members > 2:
            ours = (n < stop) & (rows > 2)
            value = product(w, s, z, ready2, kind, zeroed, assembled) * whole
            value = finish(value, bias + n, residual + 2 * residual_row + n, ours, activation, biased, added, dtype)
            best2, place2, total2 = put(value, out + 2 * out_row, n, ours, best2, place2, total2, peaked)
            ours = (n < stop) & (rows > 3)
            value = product(w, s, z, ready3, kind, zeroed, assembled) * whole
            value = finish(value, bias + n, residual + 3 * residual_row + n, ours, activation, biased, added, dtype)
            best3, place3, total3 = put(value, out + 3 * out_row, n, ours, best3, place3, total3, peaked)
        w, s, z = w1, s1, z1
    if peaked:
        leave(best0, place0, total0, 0, rows, tops, ids, sums)
        if members > 1:
            leave(best1, place1, total1, 1, rows, tops, ids, sums)
        if members > 2:
            leave(best2, place2, total2, 2, rows, tops, ids, sums)
            leave(best3, place3, total3, 3, rows, tops, ids, sums)


@kernel()
def load_tile(
    words: Any, scale: Any, zero: Any, first: Any, stop: Any, outputs: Any, inputs: constexpr, each: constexpr, group: constexpr,
    zeroed: constexpr, width: constexpr, tile: constexpr,
) -> Any:  # fmt: skip
    """Words (tile, width) of the outputs from `first` on; and of each chunk of them the scale and the zero point, (tile, width / 4),
    where there are groups. Behind the last output the last one is read again, behind `stop` nothing."""
    across: constexpr = inputs // each
    n = tl.minimum(first + tl.arange(0, tile), outputs - 1).to(tl.int64)[:, None]
    at = tl.arange(0, width)[None, :]
    w = tl.load(words + n * across + at, mask=(at < across) & (first < stop), other=0, eviction_policy="evict_first")
    s, z = 1.0, 8.0
    if group is not None:
        chunk = tl.arange(0, width // 4)[None, :]
        of_group = n * ((inputs + group - 1) // group) + chunk * (4 * each) // group
        there = (chunk * (4 * each) < inputs) & (first < stop)
        # The hints have chunks dealt out to lanes as the words are: a chunk's scale goes to the thread that has the chunk, and nothing is
        # moved for the sum. Aligned to no more than itself each is read by itself, which the second hint alone would not have.
        s = tl.load(tl.max_contiguous(tl.multiple_of(scale + of_group, [1, 1]), [1, 2]), mask=there, other=0)
        if zeroed:
            z = tl.load(tl.max_contiguous(tl.multiple_of(zero + of_group, [1, 1]), [1, 2]), mask=there, other=0)
    return w, s, z


@kernel()
def ready(row: Any, kind: constexpr, width: constexpr, assembled: constexpr) -> Any:
    """A row (width * inputs of a word,) as `product` takes it: in parts (1, chunks)."""
    chunks: constexpr = width // 4
    if kind == "int4":
        whole, unit = fixed_point(row, width * 8, 32)
        even, odd = tl.split(tl.reshape(whole, [width * 4, 2]))
        low0, high0 = bytes_together(even, width, assembled)
        low1, high1 = bytes_together(odd, width, assembled)
        total = tl.sum(tl.reshape(whole << 16 >> 16, [chunks, 32]), 1).to(tl.float32) * unit
        parts = (
            tl.reshape(unit, [1, chunks]), tl.reshape(total, [1, chunks]), spread(low0, chunks), spread(high0, chunks),
            spread(low1, chunks), spread(high1, chunks),
        )  # fmt: skip
    elif kind == "fp8":
        bytes0, bytes1, bytes2, bytes3 = four(tl.reshape(row, [1, chunks, 2, 2, 2, 2]))
        parts = four(bytes0), four(bytes1), four(bytes2), four(bytes3)  # type: ignore[assignment]
    else:
        whole, unit = fixed_point(row, width * 4, 16)
        low, high = bytes_together(whole, width, assembled)
        parts = tl.reshape(unit, [1, chunks]), spread(low, chunks), spread(high, chunks)  # type: ignore[assignment]
    return parts


@kernel()
def spread(words: Any, chunks: constexpr) -> Any:
    """The words of a row, by their place in a chunk: four (1, chunks)."""
    return four(tl.reshape(words, [1, chunks, 2, 2]))


@kernel()
def product(
    w: Any, s: Any, z: Any, row: Any, kind: constexpr, zeroed: constexpr, assembled: constexpr,
) -> Any:  # fmt: skip
    """float32 (tile,): of a tile of words and a row."""
    tile: constexpr = w.shape[0]
    chunks: constexpr = w.shape[1] // 4
    parts = four(tl.reshape(w, [tile, chunks, 2, 2]))
    low = tl.zeros([tile, chunks], tl.int32)
    high = low
    if kind == "int4":
        unit, total, low0, high0, low1, high1 = row
        for j in tl.static_range(4):
            even, odd = parts[j] & 0x0F0F0F0F, (parts[j] >> 4) & 0x0F0F0F0F
            low = dot_bytes(even, low0[j], low, False, False, assembled)
            low = dot_bytes(odd, low1[j], low, False, False, assembled)
            high = dot_bytes(even, high0[j], high, False, True, assembled)
            high = dot_bytes(odd, high1[j], high, False, True, assembled)
        # Where there are no zero points z is the 8 that stands for all.
        offset = (z.to(tl.float32) if zeroed else z) * total
        found = ((high * 256 + low).to(tl.float32) * unit - offset) * s.to(tl.float32)
    elif kind == "fp8":
        found = tl.zeros([tile, chunks], tl.float32)
        for j in tl.static_range(4):
            found = dot_floats(parts[j], row[0][j], row[1][j], row[2][j], row[3][j], found, assembled)
    else:
        unit, low0, high0 = row
        for j in tl.static_range(4):
            low = dot_bytes(parts[j], low0[j], low, True, False, assembled)
            high = dot_bytes(parts[j], high0[j], high, True, True, assembled)
        found = (high * 256 + low).to(tl.float32) * unit
    return tl.sum(found, 1)
