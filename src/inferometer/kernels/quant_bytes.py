"""Several rows and a weight in few bits, multiplied in bytes: rows are split into two of them, the weight stays as it lies."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.eight_bit_floats import float_bits
from inferometer.kernels.finish import put_product
from inferometer.kernels.norm import part_of_row
from inferometer.kernels.prefetch import prefetch
from inferometer.kernels.support import constexpr, kernel, tl


@kernel("rows")
def split_rows(
    x: Any, bytes_of: Any, worths: Any, gamma: Any, beta: Any, epsilon: Any, rows: Any, inputs: Any, padded: Any, x_row: Any,
    members: constexpr, block: constexpr, width: constexpr, normed: constexpr, weighted: constexpr, shifted: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """A row's `block` inputs in bytes, as `quant_bytes_product` takes them for int8; normed first if asked.

    bytes_of: int8 (2, members, padded), zeros where there is no input and no row; worths: float32 (padded / block, members).
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
    upper, lower, worth = two_bytes(a)
    at = bytes_of + m * padded + k
    tl.store(at, upper)
    tl.store(at + members * padded, lower)
    tl.store(worths + number * members + m + tl.arange(0, 1), worth)


@kernel("rows")
def quant_bytes_product(
    x: Any, data: Any, worths: Any, scale: Any, bias: Any, residual: Any, out: Any, partial: Any, arrived: Any, rows: Any, outputs: Any,
    inputs: Any, padded: Any, x_row: Any, residual_row: Any, out_row: Any, kind: constexpr, members: constexpr, parts: constexpr,
    tile: constexpr, block: constexpr, stages: constexpr, even: constexpr, activation: constexpr, biased: constexpr, added: constexpr,
    assembled: constexpr, early: constexpr, readied: constexpr,
) -> None:  # fmt: skip
    """Rows padded to those of a matrix product whose first side is the weight, `block` inputs an iteration.

    Matrix instructions read the weight's bytes from where the copy from memory has put them, so that no register sees them. What costs
    instead is another product: x is an upper and a lower number of 8 bits (`two_bytes`, `floats_of`), by a scale for each row and each
    `block` of inputs. Parts as in `skinny`.

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
    if early:
        # The kernel before may still write x and the residual, not the weight: what the first iterations read comes into the cache.
        for stage in tl.static_range(stages):
            further = start + stage * block + tl.arange(0, block // 128)[None, :] * 128
            prefetch(data + line * inputs + tl.minimum(further, inputs - 1))
        tl.extra.cuda.gdc_wait()
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
            lower = tl.load(split + members * padded)
            worth = tl.load(worths + base // block * members + m)
        else:
            if even:
                a = tl.load(states + base, mask=(m < rows)[:, None], other=0)
            else:
                a = tl.load(states + base, mask=(m < rows)[:, None] & (base + k < inputs)[None, :], other=0)
            if kind == "fp8":
                upper, lower, rest, worth = floats_of(a.to(tl.float32), x.dtype.element_ty, assembled)
            else:
                upper, lower, worth = two_bytes(a.to(tl.float32))
        if kind == "fp8":
            sums = tl.dot(w, tl.trans(lower), out_dtype=tl.float32) * 0.125
            if x.dtype.element_ty == tl.float16:
                sums += tl.dot(w, tl.trans(rest), out_dtype=tl.float32) * 0.015625
            sums += tl.dot(w, tl.trans(upper), out_dtype=tl.float32)
            products += sums * worth[None, :]
        else:
            sums = tl.dot(w, tl.trans(upper), out_dtype=tl.int32) * 256 + tl.dot(w, tl.trans(lower), out_dtype=tl.int32)
            products += sums.to(tl.float32) * worth[None, :]
    # Outputs side by side, as the result is stored.
    products = tl.trans(products)
    n = column * tile + tl.arange(0, tile)[None, :]
    products = products * tl.load(scale + tl.minimum(n, outputs - 1))
    put_product(
        products, bias, residual, out, partial, arrived, rows, outputs, residual_row, out_row, m[:, None], n, column, part, members, tile,
        parts, activation, biased, added,
    )  # fmt: skip


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
def floats_of(a: Any, dtype: constexpr, assembled: constexpr) -> Any:
    """float32 (rows, inputs) -> e4m3 upper, lower and rest, float32 (rows,) worth: a = (upper + lower / 8 + rest / 64) * worth.

    Two numbers of 4 bits hold the 8 of bfloat16; the rest is for the 11 of float16, and lower again for others. What is below 2^-15 of
    the row's largest loses bits. What is no number, or infinite, makes the row's worth NaN.
    """
    exponent = exponent_of(a)
    # The largest comes to between 128 and 256, below e4m3's 448.
    scaled = a * ((261 - exponent) << 23).to(tl.float32, bitcast=True)[:, None]
    worth = tl.where(exponent == 255, float("nan"), ((exponent - 7) << 23).to(tl.float32, bitcast=True))
    upper = e4m3(scaled, assembled)
    left = (scaled - upper.to(tl.float32)) * 8.0
    lower = e4m3(left, assembled)
    rest = lower
    if dtype == tl.float16:
        rest = e4m3((left - lower.to(tl.float32)) * 8.0, assembled)
    return upper, lower, rest, worth


@kernel()
def e4m3(value: Any, assembled: constexpr) -> Any:
    """The e4m3 number nearest to a float32 of at most 448. Triton's interpreter would cut bits off."""
    return value.to(tl.float8e4nv) if assembled else float_bits(value).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
