"""Several rows and a weight in few bits, multiplied in bytes: rows are split into two of them, the weight stays as it lies."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.eight_bit_floats import float_bits
from inferometer.kernels.finish import beside_product, put_product
from inferometer.kernels.norm import part_of_row
from inferometer.kernels.prefetch import prefetch
from inferometer.kernels.support import constexpr, kernel, tl


@kernel("rows")
def split_rows(
    x: Any, bytes_of: Any, worths: Any, gamma: Any, beta: Any, epsilon: Any, rows: Any, inputs: Any, padded: Any, x_row: Any,
    kind: constexpr, numbers: constexpr, members: constexpr, block: constexpr, width: constexpr, normed: constexpr, weighted: constexpr,
    shifted: constexpr, assembled: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """A row's `block` inputs in numbers of 8 bits, as `quant_bytes_product` takes them; normed first if asked.

    bytes_of: (numbers, members, padded), zeros where there is no input and no row; worths: float32 (padded / block, members).
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    m = tl.program_id(0)
    number = tl.program_id(1)
    k = number * block + tl.arange(0, block)[None, :]
    real = (m < rows) & (k < inputs)
    factor, shift = 1.0, 0.0
    if weighted:
        factor = tl.load(gamma + k, mask=real, other=0).to(tl.float32)
    if shifted:
        shift = tl.load(beta + k, mask=real, other=0).to(tl.float32)
    if early:
        # The kernel before may still write x.
        tl.extra.cuda.gdc_wait()
    a = part_of_row(x + m * x_row, k, real, m < rows, factor, shift, epsilon, inputs, width, normed).to(tl.float32)
    upper, lower, rest, worth = eight_bits(a, kind, numbers, assembled, False)
    at = bytes_of + m * padded + k
    tl.store(at, upper)
    if numbers > 1:
        tl.store(at + members * padded, lower)
    if numbers > 2:
        tl.store(at + 2 * members * padded, rest)
    tl.store(worths + number * members + m + tl.arange(0, 1), worth)


@kernel("rows")
def quant_bytes_product(
    x: Any, data: Any, worths: Any, scale: Any, bias: Any, residual: Any, out: Any, tops: Any, ids: Any, masses: Any, partial: Any,
    arrived: Any, rows: Any, outputs: Any, inputs: Any, padded: Any, x_row: Any, residual_row: Any, out_row: Any, kind: constexpr,
    numbers: constexpr, members: constexpr, parts: constexpr, tile: constexpr, block: constexpr, stages: constexpr, even: constexpr,
    activation: constexpr, biased: constexpr, added: constexpr, peaked: constexpr, assembled: constexpr, early: constexpr,
    readied: constexpr,
) -> None:  # fmt: skip
    """Rows padded to those of a matrix product whose first side is the weight, `block` inputs an iteration.

    Matrix instructions read the weight's bytes from where the copy from memory has put them, so that no register sees them. What costs
    instead is another product: x is one number of 8 bits, or two or three (`eight_bits`), by a scale for each row and each `block` of
    inputs. Parts and peaks as in `skinny`.

    readied: x is what `split_rows` has left, of rows of `padded` numbers.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.program_id(0)
    part = tl.program_id(1)
    m = tl.arange(0, members)
    i = tl.arange(0, tile)
    line = tl.minimum(column * tile + i, outputs - 1).to(tl.int64)[:, None]
    k = tl.arange(0, block)
    weights = data + line * inputs + k[None, :]
    states = x + m[:, None] * x_row + k[None, :]
    length = tl.cdiv(tl.cdiv(inputs, block), parts) * block
    start = part * length
    stop = tl.minimum(start + length, inputs)
    # Outputs side by side, as the result is stored. What the end takes is long there by then.
    n = tl.minimum(column * tile + tl.arange(0, tile)[None, :], outputs - 1)
    unit = tl.load(scale + n)
    shift = 0.0
    if biased:
        shift = tl.load(bias + n)
    if early:
        # The kernel before may still write x and the residual, not the weight: what the first iterations read comes into the cache.
        for stage in tl.static_range(stages):
            further = start + stage * block + tl.arange(0, block // 128)[None, :] * 128
            prefetch(data + line * inputs + tl.minimum(further, inputs - 1))
        tl.extra.cuda.gdc_wait()
    beside = beside_product(residual, residual_row, rows, outputs, column, members, tile, added)
    products = tl.zeros([tile, members], tl.float32)
    for base in tl.range(start, stop, block, num_stages=stages):
        if even:
            w = tl.load(weights + base)
        else:
            nothing: constexpr = 0.0 if kind == "fp8" else 0
            w = tl.load(weights + base, mask=(base + k < inputs)[None, :], other=nothing)
        if readied:
            split = x + m[:, None] * padded + k[None, :] + base
            upper = tl.load(split)
            lower, rest = upper, upper
            if numbers > 1:
                lower = tl.load(split + members * padded)
            if numbers > 2:
                rest = tl.load(split + 2 * members * padded)
            worth = tl.load(worths + base // block * members + m)
        else:
            if even:
                a = tl.load(states + base, mask=(m < rows)[:, None], other=0)
            else:
                a = tl.load(states + base, mask=(m < rows)[:, None] & (base + k < inputs)[None, :], other=0)
            upper, lower, rest, worth = eight_bits(a.to(tl.float32), kind, numbers, assembled, True)
        if kind == "fp8":
            sums = tl.dot(w, tl.trans(upper), out_dtype=tl.float32)
            if numbers > 1:
                sums += tl.dot(w, tl.trans(lower), out_dtype=tl.float32) * 0.125
            if numbers > 2:
                sums += tl.dot(w, tl.trans(rest), out_dtype=tl.float32) * 0.015625
            products += sums * worth[None, :]
        else:
            sums = tl.dot(w, tl.trans(upper), out_dtype=tl.int32)
            if numbers > 1:
                sums = sums * 256 + tl.dot(w, tl.trans(lower), out_dtype=tl.int32)
            products += sums.to(tl.float32) * worth[None, :]
    put_product(
        tl.trans(products) * unit, shift, beside, out, tops, ids, masses, partial, arrived, rows, outputs, out_row, column, part, members,
        tile, parts, activation, biased, added, peaked,
    )  # fmt: skip


@kernel()
def eight_bits(a: Any, kind: constexpr, numbers: constexpr, assembled: constexpr, back: constexpr) -> Any:
    """float32 (rows, inputs) -> its upper, lower and rest of 8 bits, of which `numbers` count, and float32 (rows,) worth.

    back: whether e4m3 may be converted back, see `rounded`.
    """
    if kind == "fp8":
        upper, lower, rest, worth = floats_of(a, numbers, assembled, back)
    elif numbers > 1:
        upper, lower, worth = two_bytes(a)
        rest = lower
    else:
        upper, worth = one_byte(a)
        lower, rest = upper, upper
    return upper, lower, rest, worth


@kernel()
def exponent_of(a: Any) -> Any:
    """(rows,): the largest biased exponent of float32 (rows, inputs); 255 where something is no number or infinite."""
    # Below 2^-111 all counts as nothing: the factor would be too large to write.
    return tl.maximum(tl.max(a.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1) >> 23, 16)


@kernel()
def two_bytes(a: Any) -> Any:
    """float32 (rows, inputs) -> int8 upper and lower, float32 (rows,) worth: a = (256 * upper + lower) * worth, off by 2^-14 of the row's
    largest at most.

    Both bytes have a sign, as matrix instructions want it. What is no number, or infinite, makes the row's worth NaN.
    """
    exponent = exponent_of(a)
    up = ((267 - exponent) << 23).to(tl.float32, bitcast=True)
    worth = tl.where(exponent == 255, float("nan"), ((exponent - 13) << 23).to(tl.float32, bitcast=True))
    # Added to 1.5 * 2^23 a number is rounded to a whole one, which is the sum's lowest bits.
    whole = (a * up[:, None] + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    upper = (whole + 128) >> 8
    return upper.to(tl.int8), whole.to(tl.int8), worth


@kernel()
def one_byte(a: Any) -> Any:
    """float32 (rows, inputs) -> int8, float32 (rows,) worth: a = number * worth, off by half of the row's largest over 127 at most.

    What is no number, or infinite, makes the row's worth NaN.
    """
    largest = tl.max(tl.abs(a), 1)
    # Below 2^-100 all counts as nothing: the factor would be too large to write.
    held = tl.maximum(largest, 7.888609052210118e-31)
    worth = tl.where(exponent_of(a) == 255, float("nan"), held / 127)
    whole = (a * (127 / held)[:, None] + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    return whole.to(tl.int8), worth


@kernel()
def floats_of(a: Any, numbers: constexpr, assembled: constexpr, back: constexpr) -> Any:
    """float32 (rows, inputs) -> e4m3 upper, lower and rest, float32 (rows,) worth: a = (upper + lower / 8 + rest / 64) * worth.

    One number of 4 bits is a rounded activation; two hold the 8 of bfloat16; three are for the 11 of float16. What is below 2^-15 of the
    row's largest loses bits. What is no number, or infinite, makes the row's worth NaN.
    """
    exponent = exponent_of(a)
    # The largest comes to between 128 and 256, below e4m3's 448.
    scaled = a * ((261 - exponent) << 23).to(tl.float32, bitcast=True)[:, None]
    worth = tl.where(exponent == 255, float("nan"), ((exponent - 7) << 23).to(tl.float32, bitcast=True))
    upper = e4m3(scaled, assembled)
    lower, rest = upper, upper
    if numbers > 1:
        left = (scaled - (upper.to(tl.float32) if back else rounded(scaled))) * 8.0
        lower = e4m3(left, assembled)
    if numbers > 2:
        rest = e4m3((left - (lower.to(tl.float32) if back else rounded(left))) * 8.0, assembled)
    return upper, lower, rest, worth


@kernel()
def rounded(value: Any) -> Any:
    """float32 of the e4m3 number nearest to a float32 of at most 448, of two equally near ones the even one.

    Not the conversion back: Triton 3.6 makes other numbers of e4m3 in a program of one warp than they stand for (H200).
    """
    bits = value.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    # Below 2^-6 numbers are multiples of 2^-9, as those around 1.5 * 2^14 are.
    return tl.where(tl.abs(value) < 0.015625, (value + 24576.0) - 24576.0, normal)


@kernel()
def e4m3(value: Any, assembled: constexpr) -> Any:
    """The e4m3 number nearest to a float32 of at most 448. Triton's interpreter would cut bits off."""
    return value.to(tl.float8e4nv) if assembled else float_bits(value).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
