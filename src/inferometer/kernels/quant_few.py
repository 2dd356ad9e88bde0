"""The kernel for several rows and a weight in few bits, which is widened between memory and the matrix instructions."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.arrivals import last_to_arrive
from inferometer.kernels.finish import finish
from inferometer.kernels.fixed_point import four
from inferometer.kernels.prefetch import prefetch
from inferometer.kernels.support import constexpr, kernel, tl
from inferometer.kernels.widen import widen, widen_nibbles, widen_symmetric


@kernel("rows")
def quant_few_product(
    x: Any, data: Any, scale: Any, zero: Any, bias: Any, residual: Any, out: Any, partial: Any, arrived: Any, rows: Any, outputs: Any,
    inputs: Any, row_bytes: Any, groups: Any, x_row: Any, residual_row: Any, out_row: Any, kind: constexpr, group: constexpr,
    zeroed: constexpr, members: constexpr, parts: constexpr, tile: constexpr, step: constexpr, groups_at_once: constexpr,
    stages: constexpr, even: constexpr, activation: constexpr, biased: constexpr, added: constexpr, wide: constexpr,
    assembled: constexpr, paired: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """Rows padded to those of a matrix product whose other side is the weight. Each iteration takes `groups_at_once` times `step`
    inputs; a step shares a scale where there are groups: its products are scaled as they are added.

    data: bytes of the weight; of nibbles, those of even inputs and of odd ones are two products. With groups `group` is a multiple of
    `step`, or one covers all inputs. Parts as in `skinny`.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.program_id(0)
    part = tl.program_id(1)
    n = column * tile + tl.arange(0, tile)
    m = tl.arange(0, members)
    each: constexpr = 2 if kind == "int4" else 1
    dtype: constexpr = tl.float32 if wide else x.dtype.element_ty
    line = tl.minimum(n, outputs - 1).to(tl.int64)
    weights = data + line[:, None] * row_bytes
    states = x + m[:, None] * x_row
    block: constexpr = step * groups_at_once
    span = tl.cdiv(tl.cdiv(inputs, block), parts) * block
    start = part * span
    stop = tl.minimum(start + span, inputs)
    products = tl.zeros([members, tile], tl.float32)
    if early:
        # The kernel before may still write x and the residual, not the weight: what the first iterations read comes into the cache.
        lines: tl.constexpr = (block // each + 127) // 128
        for stage in tl.static_range(stages + 1):
            further = (start + stage * block) // each + tl.arange(0, lines) * 128
            prefetch(weights + tl.minimum(further, row_bytes - 1)[None, :])
        tl.extra.cuda.gdc_wait()
    s, z = of_groups(scale, zero, line, groups, start, stop, group, zeroed, tile, step, groups_at_once)
    for base in tl.range(start, stop, block, num_stages=stages):
        if kind == "int4":
            byte = base // 2 + tl.arange(0, block // 2)
            if even:
                w = tl.load(weights + byte[None, :], eviction_policy="evict_first")
            else:
                w = tl.load(weights + byte[None, :], mask=(byte < row_bytes)[None, :], other=0, eviction_policy="evict_first")
            # Of the next iteration, as they take as long to come as a weight that is not on its way.
            s1, z1 = of_groups(scale, zero, line, groups, base + block, stop, group, zeroed, tile, step, groups_at_once)
            if groups_at_once == 4:
                parts_of_w = four(tl.reshape(tl.permute(tl.reshape(w, [tile, 4, step // 2]), (0, 2, 1)), [tile, step // 2, 2, 2]))
                scales, zeros = four(tl.reshape(s, [tile, 2, 2])), (z, z, z, z)
                if zeroed:
                    zeros = four(tl.reshape(z, [tile, 2, 2]))
            else:
                parts_of_w, scales, zeros = (w,), (tl.reshape(s, [tile]),), (z,)  # type: ignore[assignment]
                if zeroed:
                    zeros = (tl.reshape(z, [tile]),)  # type: ignore[assignment]
            for number in tl.static_range(groups_at_once):
                if zeroed:
                    low, high = widen_nibbles(parts_of_w[number], zeros[number], dtype, assembled)
                else:
                    low, high = widen_symmetric(parts_of_w[number], dtype, assembled)
                a, b = pairs(x, states, m < rows, base + number * step, inputs, step, even, paired)
                if wide:
                    a, b = a.to(tl.float32), b.to(tl.float32)
                found = tl.dot(a, tl.trans(low), input_precision="ieee")
                found = tl.dot(b, tl.trans(high), found, input_precision="ieee")
                products += found * scales[number].to(tl.float32)[None, :]
            s, z = s1, z1
        else:
            k = base + tl.arange(0, block)
            if even:
                w = tl.load(weights + k[None, :], eviction_policy="evict_first")
                a = tl.load(states + k[None, :], mask=(m < rows)[:, None], other=0)
            else:
                w = tl.load(weights + k[None, :], mask=(k < inputs)[None, :], other=0, eviction_policy="evict_first")
                a = tl.load(states + k[None, :], mask=(m < rows)[:, None] & (k < inputs)[None, :], other=0)
            w = widen(w, kind, dtype, assembled)
            if wide:
                a = a.to(tl.float32)
            products = tl.dot(a, tl.trans(w), products, input_precision="ieee")
    if kind != "int4":
        products = products * tl.load(scale + tl.minimum(n, outputs - 1))[None, :]
    n = n[None, :]
    real = (m < rows)[:, None] & (n < outputs)
    last = True
    if parts > 1:
        here = partial + column.to(tl.int64) * (parts * tile * members) + m[:, None] * tile + tl.arange(0, tile)[None, :]
        wanted = tl.broadcast_to((m < rows)[:, None], (members, tile))
        tl.store(here + part * (tile * members), products, mask=wanted)
        last = last_to_arrive(arrived + column, parts)
    if last:
        if parts > 1:
            products = tl.zeros([members, tile], tl.float32)
            for other in tl.static_range(parts):
                # Not from the L1 cache: other processors have written them.
                products += tl.load(here + other * (tile * members), mask=wanted, other=0, cache_modifier=".cg")
        beside = residual + m[:, None] * residual_row + n
        bias_at = bias + tl.broadcast_to(n, (members, tile))
        rounded = finish(products, bias_at, beside, real, activation, biased, added, out.dtype.element_ty)
        tl.store(out + m[:, None] * out_row + n, rounded, mask=real)


@kernel()
def of_groups(
    scale: Any, zero: Any, line: Any, groups: Any, first: Any, stop: Any, group: constexpr, zeroed: constexpr, tile: constexpr,
    step: constexpr, groups_at_once: constexpr,
) -> Any:  # fmt: skip
    """(tile, groups_at_once) scales, and zero points, of the groups from input `first` on in the rows `line` of the weight; nothing
    behind `stop`."""
    s, z = 1.0, 8.0
    if group is not None:
        begin = first + tl.arange(0, groups_at_once) * step
        at = line[:, None] * groups + (begin // group)[None, :]
        real = tl.broadcast_to((begin < stop)[None, :], (tile, groups_at_once))
        s = tl.load(scale + at, mask=real, other=0)
        if zeroed:
            z = tl.load(zero + at, mask=real, other=0)
    return s, z


@kernel()
def pairs(
    x: Any, states: Any, there: Any, first: Any, inputs: Any, step: constexpr, even: constexpr, paired: constexpr,
) -> Any:  # fmt: skip
    """(members, step / 2) each: the even inputs from `first` on, and the odd ones. paired: read two at a time."""
    pair = tl.arange(0, step // 2)
    k = first + 2 * pair
    if paired:
        both = states.to(tl.pointer_type(tl.int32)) + first // 2 + pair[None, :]
        real = there[:, None]
        if not even:
            real = real & (k < inputs)[None, :]
        words = tl.load(both, mask=real, other=0)
        a = (words & 65535).to(tl.int16).to(x.dtype.element_ty, bitcast=True)
        b = (words >> 16).to(tl.int16).to(x.dtype.element_ty, bitcast=True)
    else:
        a = tl.load(states + k[None, :], mask=there[:, None] & (k < inputs)[None, :], other=0)
        b = tl.load(states + k[None, :] + 1, mask=there[:, None] & (k + 1 < inputs)[None, :], other=0)
    return a, b
