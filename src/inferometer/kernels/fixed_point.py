"""Rows of numbers as 16-bit integers with a scale for each few of them: what integer dot products of four bytes take."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.support import constexpr, kernel, tl


@kernel()
def fixed_point(row: Any, width: constexpr, chunk: constexpr) -> Any:
    """(width,) of a 16-bit type -> int32 (width,) whose lower 16 bits are the integers, and float32 (width / chunk,), what one stands for.

    Scales are powers of two by the largest of a chunk, so that nothing is rounded but what is below 2^-7 of that (bfloat16) or 2^-4
    (float16), and that by 2^-15 of it at most. A chunk with an infinity or what is no number has NaN for its scale.
    """
    values = tl.reshape(row.to(tl.float32), [width // chunk, chunk])
    exponent = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1) >> 23
    # Below 2^-111 all counts as nothing: the factor would be too large to write.
    held = tl.maximum(exponent, 16)
    up = ((268 - held) << 23).to(tl.float32, bitcast=True)
    down = ((held - 14) << 23).to(tl.float32, bitcast=True)
    # Added to 1.5 * 2^23 a number is rounded to a whole one, which is the sum's lowest bits.
    whole = (values * up[:, None] + 12582912.0).to(tl.int32, bitcast=True)
    return tl.reshape(whole, [width]), tl.where(exponent == 255, float("nan"), down)


@kernel()
def bytes_together(whole: Any, count: constexpr, assembled: constexpr) -> Any:
    """int32 (4 * count,) -> int32 (count,) each, of four neighbours: their lower bytes (unsigned), and those above them (signed)."""
    if assembled:
        a, b, c, d = four(tl.reshape(whole, [count, 2, 2]))
        code: tl.constexpr = """{
            .reg .b32 ab, cd;
            prmt.b32 ab, $2, $3, 0x5140;
            prmt.b32 cd, $4, $5, 0x5140;
            prmt.b32 $0, ab, cd, 0x5410;
            prmt.b32 $1, ab, cd, 0x7632;
        }"""
        low, high = tl.inline_asm_elementwise(code, "=r,=r,r,r,r,r", [a, b, c, d], dtype=(tl.int32, tl.int32), is_pure=True, pack=1)
    else:
        parts = tl.reshape(whole, [count, 4])
        shift = (tl.arange(0, 4) * 8)[None, :]
        low, high = tl.sum((parts & 255) << shift, 1), tl.sum(((parts >> 8) & 255) << shift, 1)
    return low, high


@kernel()
def dot_bytes(word: Any, other: Any, total: Any, word_signed: constexpr, other_signed: constexpr, assembled: constexpr) -> Any:
    """total + the sum of the products of four bytes: int32 all. assembled: by the instruction that GPUs have for it."""
    if assembled:
        if word_signed and other_signed:
            code: tl.constexpr = "dp4a.s32.s32 $0, $1, $2, $3;"
        elif word_signed:
            code: tl.constexpr = "dp4a.s32.u32 $0, $1, $2, $3;"  # type: ignore[no-redef]
        elif other_signed:
            code: tl.constexpr = "dp4a.u32.s32 $0, $1, $2, $3;"  # type: ignore[no-redef]
        else:
            code: tl.constexpr = "dp4a.u32.u32 $0, $1, $2, $3;"  # type: ignore[no-redef]
        total = tl.inline_asm_elementwise(code, "=r,r,r,r", [word, other, total], dtype=tl.int32, is_pure=True, pack=1)
    else:
        for place in tl.static_range(4):
            one, two = word << (24 - 8 * place) >> 24, other << (24 - 8 * place) >> 24
            if not word_signed:
                one = one & 255
            if not other_signed:
                two = two & 255
            total += one * two
    return total


@kernel()
def four(words: Any) -> Any:
    """(..., 2, 2) -> its four parts of the last two sizes, in their order."""
    even, odd = tl.split(words)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth
