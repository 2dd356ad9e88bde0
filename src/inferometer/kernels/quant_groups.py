"""Several rows and a weight in nibbles, which are multiplied as whole numbers: scales and zero points come in once a group."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.finish import beside_product, put_product
from inferometer.kernels.fixed_point import four
from inferometer.kernels.norm import part_of_row
from inferometer.kernels.support import constexpr, kernel, tl


@kernel("rows")
def order_rows(
    x: Any, ordered: Any, sums: Any, gamma: Any, beta: Any, epsilon: Any, rows: Any, inputs: Any, padded: Any, x_row: Any,
    members: constexpr, chunk: constexpr, group: constexpr, neighbours: constexpr, width: constexpr, normed: constexpr, weighted: constexpr,
    shifted: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """A row's `chunk` inputs in the order in which `quant_groups_product` takes them, and the sums of its groups; normed first
    if asked.

    ordered: (members, padded), zeros where there is no input and no row; sums: float32 (padded / group, members).
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    m = tl.program_id(0)
    first = tl.program_id(1) * chunk
    k = tl.arange(0, group)[None, :]
    share: constexpr = group // 4
    # The thread of four that has an input, and which of its inputs it is: of a word's eight the first and the fifth come together.
    if neighbours == 4:
        thread, number = k >> 2 & 3, (k >> 4) * 4 + (k & 3)
    else:
        thread, number = k >> 1 & 3, (k >> 3) * 2 + (k & 1)
    taken = thread * share + (number & -8) + (number >> 1 & 3) + (number & 1) * 4
    begin = first + tl.arange(0, chunk // group)[:, None] * group
    real = (m < rows) & (begin + taken < inputs)
    factor, shift = 1.0, 0.0
    if weighted:
        factor = tl.load(gamma + begin + taken, mask=real, other=0).to(tl.float32)
    if shifted:
        shift = tl.load(beta + begin + taken, mask=real, other=0).to(tl.float32)
    if early:
        # The kernel before may still write x.
        tl.extra.cuda.gdc_wait()
    a = part_of_row(x + m * x_row, begin + taken, real, m < rows, factor, shift, epsilon, inputs, width, normed)
    tl.store(ordered + m * padded + begin + k, a)
    number_of = first // group + tl.arange(0, chunk // group)
    tl.store(sums + number_of * members + m, tl.sum(a.to(tl.float32), 1))


@kernel("rows")
def quant_groups_product(
    ordered: Any, sums: Any, words: Any, scale: Any, zero: Any, bias: Any, residual: Any, out: Any, partial: Any, arrived: Any, rows: Any,
    outputs: Any, across: Any, groups: Any, padded: Any, residual_row: Any, out_row: Any, group: constexpr, zeroed: constexpr,
    members: constexpr, parts: constexpr, tile: constexpr, block: constexpr, warps: constexpr, stages: constexpr, even: constexpr,
    together: constexpr, grouped_warps: constexpr, activation: constexpr, biased: constexpr, added: constexpr, wide: constexpr,
    assembled: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """Rows in the order of `order_rows`; `across` words of 32 bits a row of the weight, `block` inputs an iteration, `group` inputs of one
    scale. Weights come straight into the registers of the threads that multiply them, an iteration ahead. Parts as in `skinny`.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.program_id(0)
    part = tl.program_id(1)
    span: constexpr = group // 8
    count: constexpr = block // group
    dtype: constexpr = tl.float32 if wide else ordered.dtype.element_ty
    m = tl.arange(0, members)
    i = tl.arange(0, tile)
    # As in `quant_few_product`.
    dealt = i // (16 * warps) * (16 * warps) + i // 8 % warps * 16 + i // (8 * warps) % 2 * 8 + i % 8
    line = tl.minimum(column * tile + dealt, outputs - 1).to(tl.int64)[:, None] * across
    lane = tl.arange(0, span)[None, :]
    k = tl.arange(0, group)[:, None]
    # In the order of the product, in which results are: there scales go with them.
    own = tl.minimum(column * tile + i, outputs - 1).to(tl.int64) * groups
    blocks = tl.cdiv(across * 8, block)
    length = tl.cdiv(blocks, parts)
    start = part * length
    stop = tl.minimum(start + length, blocks)
    w0, w1, w2, w3 = load_words(words + line + lane, start * (block // 8), across, lane, start < stop, span, count, even)
    products = tl.zeros([tile, members], tl.float32)
    # Outputs side by side, as the result is stored. What the end takes is long there by then.
    shift = 0.0
    if biased:
        shift = tl.load(bias + tl.minimum(column * tile + tl.arange(0, tile)[None, :], outputs - 1))
    if early:
        # The kernel before may still write x and the residual, not the weight.
        tl.extra.cuda.gdc_wait()
    beside = beside_product(residual, residual_row, rows, outputs, column, members, tile, added)
    for base in tl.range(start, stop, num_stages=stages):
        following = base + 1
        v0, v1, v2, v3 = load_words(words + line + lane, following * (block // 8), across, lane, following < stop, span, count, even)
        s0, s1, s2, s3 = load_scales(scale, own + base * count, groups - base * count, count, together, even)
        z0, z1, z2, z3 = s0, s1, s2, s3
        if zeroed:
            z0, z1, z2, z3 = load_scales(zero, own + base * count, groups - base * count, count, together, even)
        states = ordered + m[None, :] * padded + k + base * block
        whole = sums + base * count * members + m
        products = one_group(w0, s0, z0, states, whole, products, 0, group, zeroed, members, warps, dtype, grouped_warps, assembled)
        if count > 1:
            products = one_group(w1, s1, z1, states, whole, products, 1, group, zeroed, members, warps, dtype, grouped_warps, assembled)
        if count > 2:
            products = one_group(w2, s2, z2, states, whole, products, 2, group, zeroed, members, warps, dtype, grouped_warps, assembled)
            products = one_group(w3, s3, z3, states, whole, products, 3, group, zeroed, members, warps, dtype, grouped_warps, assembled)
        w0, w1, w2, w3 = v0, v1, v2, v3
    put_product(
        tl.trans(products), shift, beside, out, out, out, out, partial, arrived, rows, outputs, out_row, column, part, members, tile, parts,
        activation, biased, added, False,
    )  # fmt: skip


@kernel()
def load_words(
    addresses: Any, first: Any, across: Any, lane: Any, there: Any, span: constexpr, count: constexpr, even: constexpr,
) -> Any:  # fmt: skip
    """(tile, span) words of each of `count` groups, from word `first` on."""
    w0 = words_at(addresses, first, across, lane, there, even, span)
    w1, w2, w3 = w0, w0, w0
    if count > 1:
        w1 = words_at(addresses, first + span, across, lane, there, even, span)
    if count > 2:
        w2 = words_at(addresses, first + 2 * span, across, lane, there, even, span)
        w3 = words_at(addresses, first + 3 * span, across, lane, there, even, span)
    return w0, w1, w2, w3


@kernel()
def words_at(addresses: Any, first: Any, across: Any, lane: Any, there: Any, even: constexpr, span: constexpr) -> Any:
    """The words of one group: as many neighbours a thread as make four threads read them all."""
    real = there & (lane >= 0) if even else there & (first + lane < across)
    each: constexpr = span // 4
    return tl.load(tl.max_contiguous(tl.multiple_of(addresses + first, [1, 4 * each]), [1, each]), mask=real, other=0)


@kernel()
def load_scales(first: Any, at: Any, left: Any, count: constexpr, together: constexpr, even: constexpr) -> Any:
    """(tile,) scales of each of `count` groups, the first at `at`; those behind the last, of which `left` are left, are it again.

    together: four of 16 bits in one word, which is aligned. Every load of a warp touches eight lines of the cache, and one by one they
    would take longer than the weight.
    """
    if together:
        kind: constexpr = first.dtype.element_ty
        word = tl.load((first + at).to(tl.pointer_type(tl.int64)))
        s0, s1 = word.to(tl.int16).to(kind, bitcast=True), (word >> 16).to(tl.int16).to(kind, bitcast=True)
        s2, s3 = (word >> 32).to(tl.int16).to(kind, bitcast=True), (word >> 48).to(tl.int16).to(kind, bitcast=True)
    else:
        s0 = tl.load(first + at)
        s1, s2, s3 = s0, s0, s0
        if count > 1:
            s1 = tl.load(first + at + (1 if even else tl.minimum(1, left - 1)))
        if count > 2:
            s2 = tl.load(first + at + (2 if even else tl.minimum(2, left - 1)))
            s3 = tl.load(first + at + (3 if even else tl.minimum(3, left - 1)))
    return s0, s1, s2, s3


@kernel()
def one_group(
    w: Any, s: Any, z: Any, states: Any, whole: Any, products: Any, number: constexpr, group: constexpr, zeroed: constexpr,
    members: constexpr, warps: constexpr, dtype: constexpr, grouped_warps: constexpr, assembled: constexpr,
) -> Any:  # fmt: skip
    """products + scale * (nibbles - zero) x: the nibbles plus `least` are multiplied, and what that is too much is taken off."""
    least: constexpr = 1024.0 if dtype == tl.float16 else 128.0
    a = tl.load(states + number * group)
    total = tl.load(whole + number * members)
    if dtype == tl.float32:
        a = a.to(tl.float32)
    b = whole_numbers(w, group, warps, dtype, least, grouped_warps, assembled)
    found = tl.dot(b, a, input_precision="ieee")
    # Where there are no zero points 8 stands for all.
    over = z.to(tl.float32) + least if zeroed else s.to(tl.float32) * 0 + (least + 8)
    return products + s.to(tl.float32)[:, None] * (found - over[:, None] * total[None, :])


@kernel()
def whole_numbers(
    w: Any, group: constexpr, warps: constexpr, dtype: constexpr, least: constexpr, grouped_warps: constexpr, assembled: constexpr,
) -> Any:  # fmt: skip
    """(tile, group) numbers of words (tile, group / 8), in the order of the product: nibbles plus `least`."""
    tile: constexpr = w.shape[0]
    if group == 64:
        one, two = tl.split(tl.reshape(w, [tile, 4, 2]))
        found = tl.join(pairs(one, dtype, least, assembled), pairs(two, dtype, least, assembled))
        # By tile, thread, place in a pair, two bits of the pair's number in its word, the word's: lower ones first.
        found = tl.permute(found, (0, 5, 4, 1, 3, 2) if not grouped_warps else (0, 5, 4, 3, 1, 2))
    else:
        one, two, three, last = four(tl.reshape(w, [tile, 4, 2, 2]))
        found = tl.join(
            tl.join(pairs(one, dtype, least, assembled), pairs(two, dtype, least, assembled)),
            tl.join(pairs(three, dtype, least, assembled), pairs(last, dtype, least, assembled)),
        )
        found = tl.permute(found, (0, 6, 5, 4, 1, 3, 2) if not grouped_warps else (0, 6, 5, 4, 3, 1, 2))
    found = tl.reshape(found, [tile // (16 * warps), 2, warps, 8, group])
    return tl.reshape(tl.permute(found, (0, 2, 1, 3, 4)), [tile, group])


@kernel()
def pairs(word: Any, dtype: constexpr, least: constexpr, assembled: constexpr) -> Any:
    """Of words (...,) of eight nibbles, (..., 2, 2, 2) in `dtype`, each plus `least`: the place in a pair, which is of a nibble and the
    fourth behind it, then the pair, its lower bit first."""
    if assembled:
        # Lower bits of a number whose upper ones are those of `least`.
        if dtype == tl.bfloat16:
            code: tl.constexpr = """{
                .reg .b32 u, a;
                lop3.b32 a, $8, 0x000f000f, 0x43004300, 0xea;
                mov.b32 {$0, $1}, a;
                shr.u32 u, $8, 4;
                lop3.b32 a, u, 0x000f000f, 0x43004300, 0xea;
                mov.b32 {$2, $3}, a;
                shr.u32 u, $8, 8;
                lop3.b32 a, u, 0x000f000f, 0x43004300, 0xea;
                mov.b32 {$4, $5}, a;
                shr.u32 u, $8, 12;
                lop3.b32 a, u, 0x000f000f, 0x43004300, 0xea;
                mov.b32 {$6, $7}, a;
            }"""
        else:
            code: tl.constexpr = (  # type: ignore[no-redef]
                """{
                .reg .b32 u, a;
                lop3.b32 a, $8, 0x000f000f, 0x64006400, 0xea;
                mov.b32 {$0, $1}, a;
                shr.u32 u, $8, 4;
                lop3.b32 a, u, 0x000f000f, 0x64006400, 0xea;
                mov.b32 {$2, $3}, a;
                shr.u32 u, $8, 8;
                lop3.b32 a, u, 0x000f000f, 0x64006400, 0xea;
                mov.b32 {$4, $5}, a;
                shr.u32 u, $8, 12;
                lop3.b32 a, u, 0x000f000f, 0x64006400, 0xea;
                mov.b32 {$6, $7}, a;
            }"""
            )
        kinds: tl.constexpr = (
            dtype.value, dtype.value, dtype.value, dtype.value, dtype.value, dtype.value, dtype.value, dtype.value,
        )  # fmt: skip
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            code, "=&h,=&h,=&h,=&h,=&h,=&h,=&h,=&h,r", [word], dtype=kinds, is_pure=True, pack=1
        )
    else:
        a, b = ((word & 15) + least).to(dtype), ((word >> 16 & 15) + least).to(dtype)
        c, d = ((word >> 4 & 15) + least).to(dtype), ((word >> 20 & 15) + least).to(dtype)
        e, f = ((word >> 8 & 15) + least).to(dtype), ((word >> 24 & 15) + least).to(dtype)
        g, h = ((word >> 12 & 15) + least).to(dtype), ((word >> 28 & 15) + least).to(dtype)
    return tl.join(tl.join(tl.join(a, b), tl.join(c, d)), tl.join(tl.join(e, f), tl.join(g, h)))
