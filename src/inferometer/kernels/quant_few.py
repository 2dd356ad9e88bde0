"""The kernel for several rows and a weight in few bits, which is widened between memory and the matrix instructions."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.finish import beside_product, put_product
from inferometer.kernels.fixed_point import four
from inferometer.kernels.prefetch import prefetch
from inferometer.kernels.support import constexpr, kernel, tl
from inferometer.kernels.widen import pairs_of_bytes, pairs_of_nibbles


@kernel("rows")
def quant_few_product(
    x: Any, words: Any, scale: Any, zero: Any, bias: Any, residual: Any, out: Any, tops: Any, ids: Any, masses: Any, partial: Any,
    arrived: Any, rows: Any, outputs: Any, across: Any, groups: Any, x_row: Any, residual_row: Any, out_row: Any, kind: constexpr,
    group: constexpr, zeroed: constexpr, members: constexpr, parts: constexpr, tile: constexpr, block: constexpr, aligned: constexpr,
    warps: constexpr, neighbours: constexpr, stages: constexpr, even: constexpr, activation: constexpr, biased: constexpr,
    added: constexpr, peaked: constexpr, wide: constexpr, assembled: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """Rows padded to those of a matrix product whose first side is the weight: `across` times `aligned` words of 32 bits a row, `block`
    words an iteration.

    Matrix instructions want neighbouring inputs in neighbouring threads, memory wants them in one. As a sum has no order, the inputs are
    taken in another one, on both sides: then what a thread has read is what it multiplies. What is assumed of threads here decides how
    fast that is and not what comes out. Parts and peaks as in `skinny`.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.program_id(0)
    part = tl.program_id(1)
    each: constexpr = 8 if kind == "int4" else 4
    span: constexpr = 16
    m = tl.arange(0, members)
    dtype: constexpr = tl.float32 if wide else x.dtype.element_ty
    row_words = across * aligned
    # Rows of the weight as warps read them, 8 each: of the 16 of a warp's instruction the second 8 come when all warps have their first.
    i = tl.arange(0, tile)
    dealt = i // (16 * warps) * (16 * warps) + i // 8 % warps * 16 + i // (8 * warps) % 2 * 8 + i % 8
    line = tl.minimum(column * tile + dealt, outputs - 1).to(tl.int64)[:, None]
    lane = tl.arange(0, span)[None, :]
    weights = words + line * row_words + lane
    k = tl.arange(0, span * each)
    # Which input of a span is the k-th in the product. Of 16 inputs, those of an instruction, each of four threads holds four: neighbours
    # or, where `neighbours` is 2, two pairs that are 8 apart. Thread t has read words 4 t to 4 t + 3, and takes their inputs in order.
    if neighbours == 4:
        taken = tl.max_contiguous(tl.multiple_of((k >> 2 & 3) * (4 * each) + (k >> 4) * 4 + (k & 3), 4), 4)
    else:
        taken = tl.max_contiguous(tl.multiple_of((k >> 1 & 3) * (4 * each) + (k >> 3) * 2 + (k & 1), 2), 2)
    taken = taken[:, None]
    states = x + m[None, :] * x_row + taken
    length = tl.cdiv(tl.cdiv(row_words, block), parts) * block
    start = part * length
    stop = tl.minimum(start + length, row_words)
    products = tl.zeros([tile, members], tl.float32)
    # Outputs side by side, as the result is stored. What the end takes is long there by then.
    n = tl.minimum(column * tile + tl.arange(0, tile)[None, :], outputs - 1)
    unit, shift = 1.0, 0.0
    if kind != "int4":
        unit = tl.load(scale + n)
    if biased:
        shift = tl.load(bias + n)
    if early:
        # The kernel before may still write x and the residual, not the weight: what the first iterations read comes into the cache.
        reach: constexpr = (block + 31) // 32
        for stage in tl.static_range(stages):
            further = start + stage * block + tl.arange(0, reach)[None, :] * 32
            prefetch(words + line * row_words + tl.minimum(further, row_words - 1))
        if group is not None:
            # A line of scales serves many iterations, and each would wait for it: all of them come now.
            ahead: constexpr = 1024 // scale.dtype.element_ty.primitive_bitwidth
            for first in range(start * each // group, (stop * each - 1) // group + 1, ahead):
                prefetch(scale + line * groups + first)
                if zeroed:
                    prefetch(zero + line * groups + first)
        tl.extra.cuda.gdc_wait()
    beside = beside_product(residual, residual_row, rows, outputs, column, members, tile, added)
    s, z = of_groups(scale, zero, line, groups, start * each, stop * each, group, zeroed, tile)
    for base in tl.range(start, stop, block, num_stages=stages):
        for number in tl.static_range(block // span):
            first = base + number * span
            if even:
                w = tl.load(weights + first, eviction_policy="evict_first")
                a = tl.load(states + first * each, mask=(m < rows)[None, :], other=0)
            else:
                w = tl.load(weights + first, mask=first + lane < row_words, other=0, eviction_policy="evict_first")
                a = tl.load(states + first * each, mask=(m < rows)[None, :] & (first * each + taken < row_words * each), other=0)
            # Of the next span, as they take as long to come as a weight that is not on its way.
            s1, z1 = of_groups(scale, zero, line, groups, (first + span) * each, stop * each, group, zeroed, tile)
            b = widened(w, s, z, kind, dtype, tile, warps, neighbours, assembled)
            if wide:
                a = a.to(tl.float32)
            products = tl.dot(b, a, products, input_precision="ieee")
            s, z = s1, z1
    products = tl.trans(products)
    if kind != "int4":
        products *= unit
    put_product(
        products, shift, beside, out, tops, ids, masses, partial, arrived, rows, outputs, out_row, column, part, members, tile, parts,
        activation, biased, added, peaked,
    )  # fmt: skip


@kernel()
def of_groups(
    scale: Any, zero: Any, line: Any, groups: Any, first: Any, stop: Any, group: constexpr, zeroed: constexpr, tile: constexpr,
) -> Any:  # fmt: skip
    """(tile, 4) scales, and zero points, of what each of four threads reads from input `first` on of the rows `line` (tile, 1) of the
    weight: 32 inputs, which are in one group. Nothing behind `stop`."""
    s, z = 1.0, 8.0
    if group is not None:
        begin = first + tl.arange(0, 4)[None, :] * 32
        at = line * groups + begin // group
        real = tl.broadcast_to(begin < stop, (tile, 4))
        # As in `load_tile`: dealt out to threads as the words are, and read one by one.
        s = tl.load(tl.max_contiguous(tl.multiple_of(scale + at, [1, 1]), [1, 2]), mask=real, other=0)
        z = tl.full([tile, 4], 8.0, tl.float32)
        if zeroed:
            z = tl.load(tl.max_contiguous(tl.multiple_of(zero + at, [1, 1]), [1, 2]), mask=real, other=0)
    return s, z


@kernel()
def widened(
    w: Any, s: Any, z: Any, kind: constexpr, dtype: constexpr, tile: constexpr, warps: constexpr, neighbours: constexpr,
    assembled: constexpr,
) -> Any:  # fmt: skip
    """(tile, span) numbers of words (tile, 16), in the order of the product: nibbles less their zero points, times their scales."""
    one, two, three, last = four(tl.reshape(w, [tile, 4, 2, 2]))
    if kind == "int4":
        one, two = pairs_of_nibbles(one, s, z, dtype, assembled), pairs_of_nibbles(two, s, z, dtype, assembled)
        three, last = pairs_of_nibbles(three, s, z, dtype, assembled), pairs_of_nibbles(last, s, z, dtype, assembled)
        # By tile, thread, place in a pair, two bits of the pair's number in its word, two of the word's: lower ones first.
        found = tl.join(tl.join(one, two), tl.join(three, last))
        found = tl.permute(found, (0, 6, 5, 4, 1, 3, 2) if neighbours == 4 else (0, 6, 5, 4, 3, 1, 2))
    else:
        one, two = pairs_of_bytes(one, kind, dtype, assembled), pairs_of_bytes(two, kind, dtype, assembled)
        three, last = pairs_of_bytes(three, kind, dtype, assembled), pairs_of_bytes(last, kind, dtype, assembled)
        found = tl.join(tl.join(one, two), tl.join(three, last))
        found = tl.permute(found, (0, 5, 4, 1, 3, 2) if neighbours == 4 else (0, 5, 4, 3, 1, 2))
    count: constexpr = 128 if kind == "int4" else 64
    found = tl.reshape(found, [tile // (16 * warps), 2, warps, 8, count])
    return tl.reshape(tl.permute(found, (0, 2, 1, 3, 4)), [tile, count])
