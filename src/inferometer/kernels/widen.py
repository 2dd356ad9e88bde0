"""Weights of few bits become numbers that matrix instructions multiply, four bytes at a time."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.eight_bit_floats import wide_float
from inferometer.kernels.support import constexpr, kernel, tl


@kernel()
def widen(data: Any, kind: constexpr, dtype: constexpr, assembled: constexpr) -> Any:
    """Of int8, or of e4m3 as uint8, the numbers in `dtype`; exact.

    assembled: for GPUs from Ampere on, in 16 bits. What compilers make of these conversions takes two to three times as long.
    """
    if assembled:
        if kind == "int8" and dtype == tl.bfloat16:
            # 128 plus the lower bits, less 128 or, where the sign says so, 256: each is written without arithmetic.
            code: tl.constexpr = """{
                .reg .b32 a, b, m, c, k0;
                mov.b32 k0, 0x3f803f80;
                prmt.b32 a, $2, 0, 0x4140;
                prmt.b32 b, $2, 0, 0x4342;
                lop3.b32 m, a, 0x007f007f, 0x43004300, 0xea;
                lop3.b32 c, a, 0x00800080, 0xc300c300, 0xea;
                fma.rn.bf16x2 $0, m, k0, c;
                lop3.b32 m, b, 0x007f007f, 0x43004300, 0xea;
                lop3.b32 c, b, 0x00800080, 0xc300c300, 0xea;
                fma.rn.bf16x2 $1, m, k0, c;
            }"""
        elif kind == "int8":
            # 1024 plus the number plus 128, written without arithmetic.
            code: tl.constexpr = (  # type: ignore[no-redef]
                """{
                .reg .b32 u, a, b, k0, k1;
                mov.b32 k0, 0x3c003c00;
                mov.b32 k1, 0xe480e480;
                xor.b32 u, $2, 0x80808080;
                prmt.b32 a, u, 0x64646464, 0x4140;
                prmt.b32 b, u, 0x64646464, 0x4342;
                fma.rn.f16x2 $0, a, k0, k1;
                fma.rn.f16x2 $1, b, k0, k1;
            }"""
            )
        elif dtype == tl.bfloat16:
            # The bits in their places, and the exponent made up for by a factor of 2^120.
            code: tl.constexpr = (  # type: ignore[no-redef]
                """{
                .reg .b32 a, b, m, k0, k1;
                mov.b32 k0, 0x7b807b80;
                mov.b32 k1, 0x80008000;
                prmt.b32 a, $2, 0, 0x1404;
                prmt.b32 b, $2, 0, 0x3424;
                shr.u32 m, a, 4;
                and.b32 m, m, 0x07f007f0;
                lop3.b32 m, a, 0x80008000, m, 0xea;
                fma.rn.bf16x2 $0, m, k0, k1;
                shr.u32 m, b, 4;
                and.b32 m, m, 0x07f007f0;
                lop3.b32 m, b, 0x80008000, m, 0xea;
                fma.rn.bf16x2 $1, m, k0, k1;
            }"""
            )
        else:
            # As above, by a factor of 2^8.
            code: tl.constexpr = (  # type: ignore[no-redef]
                """{
                .reg .b32 a, b, m, k0;
                mov.b32 k0, 0x5c005c00;
                prmt.b32 a, $2, 0, 0x1404;
                prmt.b32 b, $2, 0, 0x3424;
                shr.u32 m, a, 1;
                and.b32 m, m, 0x3f803f80;
                lop3.b32 m, a, 0x80008000, m, 0xea;
                mul.rn.f16x2 $0, m, k0;
                shr.u32 m, b, 1;
                and.b32 m, m, 0x3f803f80;
                lop3.b32 m, b, 0x80008000, m, 0xea;
                mul.rn.f16x2 $1, m, k0;
            }"""
            )
        wide = tl.inline_asm_elementwise(code, "=r,=r,r", [data], dtype=dtype.value, is_pure=True, pack=4)
    elif kind == "int8":
        wide = data.to(dtype)
    else:
        wide = wide_float(data.to(tl.int32) << 24).to(dtype)
    return wide


@kernel()
def widen_nibbles(data: Any, zero: Any, dtype: constexpr, assembled: constexpr) -> Any:
    """Of bytes (tile, bytes) with two nibbles, nibble - zero in `dtype`, rounded once: of the lower ones and of the higher ones.

    zero: (tile,), from 0 to 15. What is between it and a whole number is taken off by itself, so that it is not rounded to `dtype`.
    """
    zero = zero.to(tl.float32)
    whole = (zero + 0.5).to(tl.int32).to(tl.float32)
    rest = tl.broadcast_to((zero - whole).to(dtype)[:, None], data.shape)
    if assembled:
        # The nibble plus 128, or plus 1024, is written without arithmetic.
        if dtype == tl.bfloat16:
            least: tl.constexpr = 128.0
            code: tl.constexpr = """{
                .reg .b32 a, b, m, minus;
                mov.b32 minus, 0xbf80bf80;
                prmt.b32 a, $4, 0, 0x4140;
                prmt.b32 b, $4, 0, 0x4342;
                lop3.b32 m, a, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 m, $5, minus, m;
                fma.rn.bf16x2 $0, $7, minus, m;
                lop3.b32 m, b, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 m, $6, minus, m;
                fma.rn.bf16x2 $1, $8, minus, m;
                shr.u32 a, a, 4;
                shr.u32 b, b, 4;
                lop3.b32 m, a, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 m, $5, minus, m;
                fma.rn.bf16x2 $2, $7, minus, m;
                lop3.b32 m, b, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 m, $6, minus, m;
                fma.rn.bf16x2 $3, $8, minus, m;
            }"""
        else:
            least: tl.constexpr = 1024.0  # type: ignore[no-redef]
            code: tl.constexpr = (  # type: ignore[no-redef]
                """{
                .reg .b32 a, b, m, minus;
                mov.b32 minus, 0xbc00bc00;
                prmt.b32 a, $4, 0, 0x4140;
                prmt.b32 b, $4, 0, 0x4342;
                lop3.b32 m, a, 0x000f000f, 0x64006400, 0xea;
                fma.rn.f16x2 m, $5, minus, m;
                fma.rn.f16x2 $0, $7, minus, m;
                lop3.b32 m, b, 0x000f000f, 0x64006400, 0xea;
                fma.rn.f16x2 m, $6, minus, m;
                fma.rn.f16x2 $1, $8, minus, m;
                shr.u32 a, a, 4;
                shr.u32 b, b, 4;
                lop3.b32 m, a, 0x000f000f, 0x64006400, 0xea;
                fma.rn.f16x2 m, $5, minus, m;
                fma.rn.f16x2 $2, $7, minus, m;
                lop3.b32 m, b, 0x000f000f, 0x64006400, 0xea;
                fma.rn.f16x2 m, $6, minus, m;
                fma.rn.f16x2 $3, $8, minus, m;
            }"""
            )
        shift = tl.broadcast_to((whole + least).to(dtype)[:, None], data.shape)
        low, high = tl.inline_asm_elementwise(
            code, "=&r,=&r,=&r,=&r,r,r,r,r,r", [data, shift, rest], dtype=(dtype.value, dtype.value), is_pure=True, pack=4
        )
    else:
        shift = tl.broadcast_to(whole.to(dtype)[:, None], data.shape)
        low, high = (data & 15).to(dtype) - shift - rest, (data >> 4).to(dtype) - shift - rest
    return low, high


@kernel()
def widen_symmetric(data: Any, dtype: constexpr, assembled: constexpr) -> Any:
    """Of bytes with two nibbles, nibble - 8 in `dtype`, exact: of the lower ones and of the higher ones."""
    if assembled:
        if dtype == tl.bfloat16:
            code: tl.constexpr = """{
                .reg .b32 a, b, m, k0, k1;
                mov.b32 k0, 0x3f803f80;
                mov.b32 k1, 0xc308c308;
                prmt.b32 a, $4, 0, 0x4140;
                prmt.b32 b, $4, 0, 0x4342;
                lop3.b32 m, a, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 $0, m, k0, k1;
                lop3.b32 m, b, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 $1, m, k0, k1;
                shr.u32 a, a, 4;
                shr.u32 b, b, 4;
                lop3.b32 m, a, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 $2, m, k0, k1;
                lop3.b32 m, b, 0x000f000f, 0x43004300, 0xea;
                fma.rn.bf16x2 $3, m, k0, k1;
            }"""
        else:
            code: tl.constexpr = (  # type: ignore[no-redef]
                """{
                .reg .b32 a, b, m, k0, k1, k2, k3;
                mov.b32 k0, 0x3c003c00;
                mov.b32 k1, 0xe408e408;
                mov.b32 k2, 0x2c002c00;
                mov.b32 k3, 0xd480d480;
                prmt.b32 a, $4, 0, 0x4140;
                prmt.b32 b, $4, 0, 0x4342;
                lop3.b32 m, a, 0x000f000f, 0x64006400, 0xea;
                fma.rn.f16x2 $0, m, k0, k1;
                lop3.b32 m, b, 0x000f000f, 0x64006400, 0xea;
                fma.rn.f16x2 $1, m, k0, k1;
                lop3.b32 m, a, 0x00f000f0, 0x64006400, 0xea;
                fma.rn.f16x2 $2, m, k2, k3;
                lop3.b32 m, b, 0x00f000f0, 0x64006400, 0xea;
                fma.rn.f16x2 $3, m, k2, k3;
            }"""
            )
        low, high = tl.inline_asm_elementwise(code, "=&r,=&r,=&r,=&r,r", [data], dtype=(dtype.value, dtype.value), is_pure=True, pack=4)
    else:
        low, high = (data & 15).to(dtype) - 8.0, (data >> 4).to(dtype) - 8.0
    return low, high
