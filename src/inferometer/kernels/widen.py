"""Words of weights in few bits become pairs of numbers that matrix instructions multiply."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.eight_bit_floats import wide_float
from inferometer.kernels.support import constexpr, kernel, tl


@kernel()
def pairs_of_bytes(word: Any, kind: constexpr, dtype: constexpr, assembled: constexpr) -> Any:
    """Of words (..., ) of four int8 or e4m3 numbers, (..., 2, 2) in `dtype`, exact: the place in a pair, then the pair.

    assembled: for GPUs from Ampere on, in 16 bits. What compilers make of these conversions takes two to three times as long.
    """
    if assembled:
        if kind == "int8" and dtype == tl.bfloat16:
            # 128 plus the lower bits, less 128 or, where the sign says so, 256: each is written without arithmetic.
            code: tl.constexpr = """{
                .reg .b32 a, b, m, c, k0;
                mov.b32 k0, 0x3f803f80;
                prmt.b32 a, $4, 0, 0x4140;
                prmt.b32 b, $4, 0, 0x4342;
                lop3.b32 m, a, 0x007f007f, 0x43004300, 0xea;
                lop3.b32 c, a, 0x00800080, 0xc300c300, 0xea;
                fma.rn.bf16x2 a, m, k0, c;
                lop3.b32 m, b, 0x007f007f, 0x43004300, 0xea;
                lop3.b32 c, b, 0x00800080, 0xc300c300, 0xea;
                fma.rn.bf16x2 b, m, k0, c;
                mov.b32 {$0, $1}, a;
                mov.b32 {$2, $3}, b;
            }"""
        elif kind == "int8":
            # 1024 plus the number plus 128, written without arithmetic.
            code: tl.constexpr = (  # type: ignore[no-redef]
                """{
                .reg .b32 u, a, b, k0, k1;
                mov.b32 k0, 0x3c003c00;
                mov.b32 k1, 0xe480e480;
                xor.b32 u, $4, 0x80808080;
                prmt.b32 a, u, 0x64646464, 0x4140;
                prmt.b32 b, u, 0x64646464, 0x4342;
                fma.rn.f16x2 a, a, k0, k1;
                fma.rn.f16x2 b, b, k0, k1;
                mov.b32 {$0, $1}, a;
                mov.b32 {$2, $3}, b;
            }"""
            )
        elif dtype == tl.bfloat16:
            # The bits in their places, and the exponent made up for by a factor of 2^120.
            code: tl.constexpr = (  # type: ignore[no-redef]
                """{
                .reg .b32 a, b, m, k0, k1;
                mov.b32 k0, 0x7b807b80;
                mov.b32 k1, 0x80008000;
                prmt.b32 a, $4, 0, 0x1404;
                prmt.b32 b, $4, 0, 0x3424;
                shr.u32 m, a, 4;
                and.b32 m, m, 0x07f007f0;
                lop3.b32 m, a, 0x80008000, m, 0xea;
                fma.rn.bf16x2 a, m, k0, k1;
                shr.u32 m, b, 4;
                and.b32 m, m, 0x07f007f0;
                lop3.b32 m, b, 0x80008000, m, 0xea;
                fma.rn.bf16x2 b, m, k0, k1;
                mov.b32 {$0, $1}, a;
                mov.b32 {$2, $3}, b;
            }"""
            )
        else:
            # As above, by a factor of 2^8.
            code: tl.constexpr = (  # type: ignore[no-redef]
                """{
                .reg .b32 a, b, m, k0;
                mov.b32 k0, 0x5c005c00;
                prmt.b32 a, $4, 0, 0x1404;
                prmt.b32 b, $4, 0, 0x3424;
                shr.u32 m, a, 1;
                and.b32 m, m, 0x3f803f80;
                lop3.b32 m, a, 0x80008000, m, 0xea;
                mul.rn.f16x2 a, m, k0;
                shr.u32 m, b, 1;
                and.b32 m, m, 0x3f803f80;
                lop3.b32 m, b, 0x80008000, m, 0xea;
                mul.rn.f16x2 b, m, k0;
                mov.b32 {$0, $1}, a;
                mov.b32 {$2, $3}, b;
            }"""
            )
        kinds: tl.constexpr = (dtype.value, dtype.value, dtype.value, dtype.value)
        a, b, c, d = tl.inline_asm_elementwise(code, "=h,=h,=h,=h,r", [word], dtype=kinds, is_pure=True, pack=1)
    elif kind == "int8":
        a, b, c, d = (word << 24 >> 24).to(dtype), (word << 16 >> 24).to(dtype), (word << 8 >> 24).to(dtype), (word >> 24).to(dtype)
    else:
        a, b = wide_float(word << 24).to(dtype), wide_float(word << 16).to(dtype)
        c, d = wide_float(word << 8).to(dtype), wide_float(word).to(dtype)
    return tl.join(tl.join(a, b), tl.join(c, d))


@kernel()
def pairs_of_nibbles(word: Any, scale: Any, zero: Any, dtype: constexpr, assembled: constexpr) -> Any:
    """Of words (...,) of eight nibbles, (..., 2, 2, 2) in `dtype`: the place in a pair, then the pair, its lower bit first. Each is
    scale * (nibble - zero), rounded once, by a scale and a product of scale and fraction that are rounded to `dtype` before.

    scale, zero: like the words, or one number; a zero point is from 0 to 15. What is between it and a whole number is taken off in the
    second step, the rest exactly in the first.
    """
    scale, zero = scale.to(tl.float32), zero.to(tl.float32)
    whole = (zero + 0.5).to(tl.int32).to(tl.float32)
    rest = ((whole - zero) * scale).to(dtype)
    scale = scale.to(dtype)
    if assembled:
        # The nibble plus 128, or plus 1024, is written without arithmetic: one of the word's beside one of the word 4 bits further.
        if dtype == tl.bfloat16:
            least: tl.constexpr = 128.0
            code: tl.constexpr = """{
                .reg .b32 u, a, one, minus, times, plus;
                mov.b32 one, 0x3f803f80;
                mov.b32 minus, {$9, $9};
                mov.b32 times, {$10, $10};
                mov.b32 plus, {$11, $11};
                shr.u32 u, $8, 4;
                prmt.b32 a, $8, u, 0x4400;
                lop3.b32 a, a, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 a, a, one, minus;
                fma.rn.bf16x2 a, a, times, plus;
                mov.b32 {$0, $1}, a;
                prmt.b32 a, $8, u, 0x5511;
                lop3.b32 a, a, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 a, a, one, minus;
                fma.rn.bf16x2 a, a, times, plus;
                mov.b32 {$2, $3}, a;
                prmt.b32 a, $8, u, 0x6622;
                lop3.b32 a, a, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 a, a, one, minus;
                fma.rn.bf16x2 a, a, times, plus;
                mov.b32 {$4, $5}, a;
                prmt.b32 a, $8, u, 0x7733;
                lop3.b32 a, a, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 a, a, one, minus;
                fma.rn.bf16x2 a, a, times, plus;
                mov.b32 {$6, $7}, a;
            }"""
        else:
            least: tl.constexpr = 1024.0  # type: ignore[no-redef]
            code: tl.constexpr = (  # type: ignore[no-redef]
                """{
                .reg .b32 u, a, one, minus, times, plus;
                mov.b32 one, 0x3c003c00;
                mov.b32 minus, {$9, $9};
                mov.b32 times, {$10, $10};
                mov.b32 plus, {$11, $11};
                shr.u32 u, $8, 4;
                prmt.b32 a, $8, u, 0x4400;
                lop3.b32 a, a, 0x000f000f, 0x64006400, 0xea;
                fma.rn.f16x2 a, a, one, minus;
                fma.rn.f16x2 a, a, times, plus;
                mov.b32 {$0, $1}, a;
                prmt.b32 a, $8, u, 0x5511;
                lop3.b32 a, a, 0x000f000f, 0x64006400, 0xea;
                fma.rn.f16x2 a, a, one, minus;
                fma.rn.f16x2 a, a, times, plus;
                mov.b32 {$2, $3}, a;
                prmt.b32 a, $8, u, 0x6622;
                lop3.b32 a, a, 0x000f000f, 0x64006400, 0xea;
                fma.rn.f16x2 a, a, one, minus;
                fma.rn.f16x2 a, a, times, plus;
                mov.b32 {$4, $5}, a;
                prmt.b32 a, $8, u, 0x7733;
                lop3.b32 a, a, 0x000f000f, 0x64006400, 0xea;
                fma.rn.f16x2 a, a, one, minus;
                fma.rn.f16x2 a, a, times, plus;
                mov.b32 {$6, $7}, a;
            }"""
            )
        minus = tl.broadcast_to((-least - whole).to(dtype), word.shape)
        kinds: tl.constexpr = (
            dtype.value, dtype.value, dtype.value, dtype.value, dtype.value, dtype.value, dtype.value, dtype.value,
        )  # fmt: skip
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            code, "=&h,=&h,=&h,=&h,=&h,=&h,=&h,=&h,r,h,h,h", [word, minus, scale, rest], dtype=kinds, is_pure=True, pack=1
        )
    else:
        whole, scale, rest = whole.to(tl.float32), scale.to(tl.float32), rest.to(tl.float32)
        a, b = nibble_at(word, 0, whole, scale, rest, dtype), nibble_at(word, 4, whole, scale, rest, dtype)
        c, d = nibble_at(word, 8, whole, scale, rest, dtype), nibble_at(word, 12, whole, scale, rest, dtype)
        e, f = nibble_at(word, 16, whole, scale, rest, dtype), nibble_at(word, 20, whole, scale, rest, dtype)
        g, h = nibble_at(word, 24, whole, scale, rest, dtype), nibble_at(word, 28, whole, scale, rest, dtype)
    return tl.join(tl.join(tl.join(a, b), tl.join(c, d)), tl.join(tl.join(e, f), tl.join(g, h)))


@kernel()
def nibble_at(word: Any, place: constexpr, whole: Any, scale: Any, rest: Any, dtype: constexpr) -> Any:
    """scale * (nibble - whole) + rest of the nibble whose lowest bit is at `place`."""
    return (((word >> place & 15).to(tl.float32) - whole) * scale + rest).to(dtype)
