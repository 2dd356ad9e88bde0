"""The kernel for several rows and a weight in few bits, which is widened between memory and the matrix instructions."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.arrivals import last_to_arrive
from inferometer.kernels.finish import finish
from inferometer.kernels.fixed_point import four
from inferometer.kernels.prefetch import prefetch
from inferometer.kernels.support import constexpr, kernel, tl
from inferometer.kernels.widen import pairs_of_bytes, pairs_of_nibbles


@kernel("rows")
def quant_few_product(
    x: Any, words: Any, scale: Any, zero: Any, bias: Any, residual: Any, out: Any, partial: Any, arrived: Any, rows: Any, outputs: Any,
    across: Any, groups: Any, x_row: Any, residual_row: Any, out_row: Any, kind: constexpr, group: constexpr, zeroed: constexpr,
    members: constexpr, parts: constexpr, tile: constexpr, block: constexpr, aligned: constexpr, stages: constexpr, even: constexpr,
    activation: constexpr, biased: constexpr, added: constexpr, wide: constexpr, assembled: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """Rows padded to those of a matrix product whose other side is the weight: `across` times `aligned` words of 32 bits a row, `block`
    words an iteration.

    Matrix instructions want neighbouring inputs in neighbouring threads, memory wants them in one. As a sum has no order, the inputs are
    taken in another one, on both sides: then what a thread has read is what it multiplies. Parts as in `skinny`.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.program_id(0)
    part = tl.program_id(1)
    n = column * tile + tl.arange(0, tile)
    each: constexpr = 8 if kind == "int4" else 4
    span: constexpr = 16
    # Sums of more rows than the matrix instruction of a warp takes are two products: Hopper's other one would have the weight copied.
    height: constexpr = members if members <= 32 else members // 2
    m = tl.arange(0, height)
    dtype: constexpr = tl.float32 if wide else x.dtype.element_ty
    row_words = across * aligned
    line = tl.minimum(n, outputs - 1).to(tl.int64)[:, None]
    lane = tl.arange(0, span)[None, :]
    weights = words + line * row_words + lane
    k = tl.arange(0, span * each)
    # Which input of a span is the k-th in the product. Of 16 inputs, those of an instruction, each of four threads holds four neighbours.
    # Thread t has read words 4 t to 4 t + 3, and takes their inputs in order.
    taken = tl.max_contiguous(tl.multiple_of((k >> 2 & 3) * (4 * each) + (k >> 4) * 4 + (k & 3), 4), 4)[None, :]
    states = x + m[:, None] * x_row + taken
    length = tl.cdiv(tl.cdiv(row_words, block), parts) * block
    start = part * length
    stop = tl.minimum(start + length, row_words)
    products = tl.zeros([height, tile], tl.float32)
    lower = products
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
    s, z = of_groups(scale, zero, line, groups, start * each, stop * each, group, zeroed, tile)
    for base in tl.range(start, stop, block, num_stages=stages):
        for number in tl.static_range(block // span):
            first = base + number * span
            if even:
                w = tl.load(weights + first, eviction_policy="evict_first")
                a = tl.load(states + first * each, mask=(m < rows)[:, None], other=0)
            else:
                w = tl.load(weights + first, mask=first + lane < row_words, other=0, eviction_policy="evict_first")
                a = tl.load(states + first * each, mask=(m < rows)[:, None] & (first * each + taken < row_words * each), other=0)
            # Of the next span, as they take as long to come as a weight that is not on its way.
            s1, z1 = of_groups(scale, zero, line, groups, (first + span) * each, stop * each, group, zeroed, tile)
            b = widened(w, s, z, kind, dtype, tile, assembled)
            if wide:
                a = a.to(tl.float32)
            products = tl.dot(a, b, products, input_precision="ieee")
            if members > height:
                there = (m + height < rows)[:, None]
                below = states + height * x_row + first * each
                if even:
                    a = tl.load(below, mask=there, other=0)
                else:
                    a = tl.load(below, mask=there & (first * each + taken < row_words * each), other=0)
                if wide:
                    a = a.to(tl.float32)
                lower = tl.dot(a, b, lower, input_precision="ieee")
            s, z = s1, z1
    if kind != "int4":
        whole = tl.load(scale + tl.minimum(n, outputs - 1))[None, :]
        products, lower = products * whole, lower * whole
    last = True
    here = partial + column.to(tl.int64) * (parts * tile * members) + m[:, None] * tile + tl.arange(0, tile)[None, :]
    if parts > 1:
        tl.store(here + part * (tile * members), products, mask=tl.broadcast_to((m < rows)[:, None], (height, tile)))
        if members > height:
            wanted = tl.broadcast_to((m + height < rows)[:, None], (height, tile))
            tl.store(here + part * (tile * members) + height * tile, lower, mask=wanted)
        last = last_to_arrive(arrived + column, parts)
    if last:
        conclude(
            products, here, bias, residual, out, 0, rows, n, outputs, residual_row, out_row, height, members, parts, tile, activation,
            biased, added,
        )  # fmt: skip
        if members > height:
            conclude(
                lower, here, bias, residual, out, height, rows, n, outputs, residual_row, out_row, height, members, parts, tile,
                activation, biased, added,
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
def widened(w: Any, s: Any, z: Any, kind: constexpr, dtype: constexpr, tile: constexpr, assembled: constexpr) -> Any:
    """(span, tile) numbers of words (tile, 16), in the order of the product: nibbles less their zero points, times their scales."""
    one, two, three, last = four(tl.reshape(w, [tile, 4, 2, 2]))
    if kind == "int4":
        one, two = pairs_of_nibbles(one, s, z, dtype, assembled), pairs_of_nibbles(two, s, z, dtype, assembled)
        three, last = pairs_of_nibbles(three, s, z, dtype, assembled), pairs_of_nibbles(last, s, z, dtype, assembled)
        # By tile, thread, place in a pair, two bits of the pair's number in its word, two of the word's: lower ones first.
        found = tl.join(tl.join(one, two), tl.join(three, last))
        found = tl.reshape(tl.permute(found, (6, 5, 4, 1, 3, 2, 0)), [128, tile])
    else:
        one, two = pairs_of_bytes(one, kind, dtype, assembled), pairs_of_bytes(two, kind, dtype, assembled)
        three, last = pairs_of_bytes(three, kind, dtype, assembled), pairs_of_bytes(last, kind, dtype, assembled)
        found = tl.join(tl.join(one, two), tl.join(three, last))
        found = tl.reshape(tl.permute(found, (5, 4, 1, 3, 2, 0)), [64, tile])
    return found


@kernel()
def conclude(
    products: Any, here: Any, bias: Any, residual: Any, out: Any, above: Any, rows: Any, n: Any, outputs: Any, residual_row: Any,
    out_row: Any, height: constexpr, members: constexpr, parts: constexpr, tile: constexpr, activation: constexpr, biased: constexpr,
    added: constexpr,
) -> None:  # fmt: skip
    """Rows from `above` on: parts are added up, in their order, and what follows the product is done."""
    m = (above + tl.arange(0, height))[:, None]
    n = n[None, :]
    if parts > 1:
        wanted = tl.broadcast_to(m < rows, (height, tile))
        products = tl.zeros([height, tile], tl.float32)
        for other in tl.static_range(parts):
            # Not from the L1 cache: other processors have written them.
            products += tl.load(here + above * tile + other * (tile * members), mask=wanted, other=0, cache_modifier=".cg")
    real = (m < rows) & (n < outputs)
    bias_at = bias + tl.broadcast_to(n, (height, tile))
    rounded = finish(products, bias_at, residual + m * residual_row + n, real, activation, biased, added, out.dtype.element_ty)
    tl.store(out + m * out_row + n, rounded, mask=real)
