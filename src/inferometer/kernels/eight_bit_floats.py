"""Numbers of eight bits, e4m3: a sign, four bits of exponent, three of mantissa."""

from __future__ import annotations

from typing import Any

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
