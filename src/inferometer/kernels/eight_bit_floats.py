"""Numbers of eight bits, e4m3: a sign, four bits of exponent, three of mantissa."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.fixed_point import four
from inferometer.kernels.support import constexpr, kernel, tl


@kernel()
def dot_floats(word: Any, a: Any, b: Any, c: Any, d: Any, total: Any, assembled: constexpr) -> Any:
    """total + the products of a word's four e4m3 numbers with a, b, c and d, in float32.

    assembled: by the conversion that GPUs from 8.9 on have. The other knows no NaN: its bits stand for 480.
    """
    a, b, c, d = a.to(tl.float32), b.to(tl.float32), c.to(tl.float32), d.to(tl.float32)
    if assembled:
        code: tl.constexpr = """{
            .reg .b16 low, high, h0, h1, h2, h3;
            .reg .b32 pair0, pair1;
            .reg .f32 f0, f1, f2, f3;
            mov.b32 {low, high}, $1;
            cvt.rn.f16x2.e4m3x2 pair0, low;
            cvt.rn.f16x2.e4m3x2 pair1, high;
            mov.b32 {h0, h1}, pair0;
            mov.b32 {h2, h3}, pair1;
            cvt.f32.f16 f0, h0;
            cvt.f32.f16 f1, h1;
            cvt.f32.f16 f2, h2;
            cvt.f32.f16 f3, h3;
            fma.rn.f32 f0, f0, $2, $6;
            fma.rn.f32 f1, f1, $3, f0;
            fma.rn.f32 f2, f2, $4, f1;
            fma.rn.f32 $0, f3, $5, f2;
        }"""
        total = tl.inline_asm_elementwise(code, "=f,r,f,f,f,f,f", [word, a, b, c, d, total], dtype=tl.float32, is_pure=True, pack=1)
    else:
        total += wide_float(word << 24) * a + wide_float(word << 16) * b + wide_float(word << 8) * c + wide_float(word) * d
    return total


@kernel()
def halves_of(row: Any, width: constexpr, chunk: constexpr, assembled: constexpr) -> Any:
    """(4 * width,) of a 16-bit type -> int32 (width,) each, of four neighbours: the first two as float16 and the last two; and float32
    (4 * width / chunk,), what their 1 stands for.

    Scales are powers of two by the largest of a chunk, which comes to between 4 and 8: nothing is rounded but what is below 2^-17 of it. A
    chunk with an infinity or what is no number has NaN for its scale.
    """
    values = tl.reshape(row.to(tl.float32), [4 * width // chunk, chunk])
    exponent = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1) >> 23
    # Below 2^-111 all counts as nothing: the factor would be too large to write.
    held = tl.maximum(exponent, 16)
    up = ((256 - held) << 23).to(tl.float32, bitcast=True)
    down = ((held - 2) << 23).to(tl.float32, bitcast=True)
    a, b, c, d = four(tl.reshape(values * up[:, None], [width, 2, 2]))
    if assembled:
        code: tl.constexpr = """{
            cvt.rn.f16x2.f32 $0, $3, $2;
            cvt.rn.f16x2.f32 $1, $5, $4;
        }"""
        first, last = tl.inline_asm_elementwise(code, "=&r,=&r,f,f,f,f", [a, b, c, d], dtype=(tl.int32, tl.int32), is_pure=True, pack=1)
    else:
        first, last = half_bits(a) | half_bits(b) << 16, half_bits(c) | half_bits(d) << 16
    return first, last, tl.where(exponent == 255, float("nan"), down)


@kernel()
def half_bits(value: Any) -> Any:
    """int32 whose lower 16 bits are those of a number as float16."""
    return value.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF


@kernel()
def dot_halves(words: Any, first: Any, last: Any, assembled: constexpr) -> Any:
    """float32: the sum over four words of the products of their e4m3 numbers with four halves, of which `first` and `last` have two each.

    assembled: by the conversion that GPUs from 8.9 on have, in float16: halves are at most 8, so that no sum of 448 times eight of them is
    too large, and each is rounded at 2^-11 of itself. The other is in float32 and knows no NaN: its bits stand for 480.
    """
    if assembled:
        code: tl.constexpr = """{
            .reg .b16 low, high;
            .reg .b32 pair, sum;
            .reg .f32 even, odd;
            mov.b32 {low, high}, $1;
            cvt.rn.f16x2.e4m3x2 pair, low;
            mul.rn.f16x2 sum, pair, $5;
            cvt.rn.f16x2.e4m3x2 pair, high;
            fma.rn.f16x2 sum, pair, $9, sum;
            mov.b32 {low, high}, $2;
            cvt.rn.f16x2.e4m3x2 pair, low;
            fma.rn.f16x2 sum, pair, $6, sum;
            cvt.rn.f16x2.e4m3x2 pair, high;
            fma.rn.f16x2 sum, pair, $10, sum;
            mov.b32 {low, high}, $3;
            cvt.rn.f16x2.e4m3x2 pair, low;
            fma.rn.f16x2 sum, pair, $7, sum;
            cvt.rn.f16x2.e4m3x2 pair, high;
            fma.rn.f16x2 sum, pair, $11, sum;
            mov.b32 {low, high}, $4;
            cvt.rn.f16x2.e4m3x2 pair, low;
            fma.rn.f16x2 sum, pair, $8, sum;
            cvt.rn.f16x2.e4m3x2 pair, high;
            fma.rn.f16x2 sum, pair, $12, sum;
            mov.b32 {low, high}, sum;
            cvt.f32.f16 even, low;
            cvt.f32.f16 odd, high;
            add.f32 $0, even, odd;
        }"""
        total = tl.inline_asm_elementwise(
            code, "=f,r,r,r,r,r,r,r,r,r,r,r,r",
            [words[0], words[1], words[2], words[3], first[0], first[1], first[2], first[3], last[0], last[1], last[2], last[3]],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        total = words[0].to(tl.float32) * 0
        for j in tl.static_range(4):
            total += wide_float(words[j] << 24) * half_at(first[j], 0) + wide_float(words[j] << 16) * half_at(first[j], 16)
            total += wide_float(words[j] << 8) * half_at(last[j], 0) + wide_float(words[j]) * half_at(last[j], 16)
    return total


@kernel()
def half_at(word: Any, place: constexpr) -> Any:
    """float32 of the float16 number whose lowest bit is at `place`."""
    return (word >> place).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@kernel()
def wide_float(word: Any) -> Any:
    """float32 of the e4m3 number in a word's highest byte: the bits put in place, the exponent made up for by the factor."""
    return (word >> 4 & -2014314496).to(tl.float32, bitcast=True) * 1.329227995784916e36


@kernel()
def float_bits(value: Any) -> Any:
    """int32, the byte of the e4m3 number nearest to a float32 of at most 448, of two equally near ones the even one; NaN for NaN."""
    bits = value.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # Three bits of mantissa are left, and 120 less of exponent.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    # Below 2^-6 numbers are multiples of 2^-9: added to 1.5 * 2^14 one is rounded to a multiple, which is the sum's lowest bits.
    small = (size.to(tl.float32, bitcast=True) + 24576.0).to(tl.int32, bitcast=True) & 15
    number = tl.where(size < 0x3C800000, small, tl.where(size > 0x7F800000, 127, normal))
    return number | ((bits >> 24) & 128)
