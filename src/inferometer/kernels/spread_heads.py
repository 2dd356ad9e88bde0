"""Queries and keys before a cache in 8 bits: rotated by positions, and then by a matrix that spreads what is in a few of their elements.

Some elements of keys are far larger than others, in the same places for every token, and so are those of queries that meet them. A number
of 8 bits is off by a part of itself (e4m3) or of the page's largest (int8), so that those few places decide how far a score is off. An
orthogonal matrix on both sides leaves every score as it is, and one of equal numbers makes all places alike (Hadamard; QuaRot, Ashkboos
et al. 2024, does so for weights and caches of 4 bits). Measured here: docs/quantize.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.rotary_write import rotate
from inferometer.kernels.support import constexpr, early, kernel, tl, usable, wait_for_inputs, wide

ROWS = 16
"""Parts of heads that a program takes: the rows of a matrix product."""
MOST = 64
"""Elements that are spread over each other at most. A matrix of more has no room beside others on small GPUs."""


def block_of(head_size: int) -> int:
    """Elements that are spread over each other: the greatest power of two that divides a head, up to MOST."""
    return min(head_size & -head_size, MOST)


@lru_cache
def signs(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(size, size) of 1 and -1, a Hadamard matrix: its own transpose, and times itself `size` times the identity. size: a power of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix.to(device, dtype)


def spread(heads: Tensor) -> Tensor:
    """heads (..., head_size) with each block of elements spread, in their type; spread again they are what they were."""
    block = block_of(heads.shape[-1])
    apart: Tensor = heads.reshape(*heads.shape[:-1], -1, block) @ signs(block, heads.device, heads.dtype)
    return torch.mul(apart, block**-0.5).reshape(heads.shape)


def spread_heads(heads: Tensor, kv_heads: int, rotation: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Queries and keys of a sweep's tokens, rotated by their angles and spread, on a GPU in one launch.

    heads: (tokens, queries + 2 * kv_heads, head_size), a token's heads side by side: queries, keys, values. rotation: cosines and signed
    sines (tokens, 1, head_size), see `rotate`, whose rounding is kept; None without. Returns (tokens, queries, head_size) and (tokens,
    kv_heads, head_size), views whose last dimension is contiguous.

    Moves 2 * tokens * (queries + kv_heads) * head_size elements.
    """
    count = heads.shape[1] - kv_heads
    if usable(heads.device):
        both = spread_heads_triton(heads, count, rotation)
    else:
        both = heads[:, :count] if rotation is None else rotate(heads[:, :count], *rotation)
        both = spread(both)
    return both[:, : count - kv_heads], both[:, count - kv_heads :]


def spread_heads_triton(heads: Tensor, count: int, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
    """The kernel, of the first `count` heads of each token: (tokens, count, head_size)."""
    tokens, _, head_size = heads.shape
    out = torch.empty((tokens, count, head_size), dtype=heads.dtype, device=heads.device)
    if tokens == 0:
        return out
    assert heads.stride()[1:] == (head_size, 1)
    cos, sin = (heads, heads) if rotation is None else rotation
    assert rotation is None or (cos.is_contiguous() and sin.is_contiguous())
    block = block_of(head_size)
    parts = tokens * count * (head_size // block)
    _spread.launch(
        (-(-parts // ROWS),), heads, cos, sin, signs(block, heads.device, heads.dtype), out, block**-0.5, parts, heads.stride(0),
        count=count, head_size=head_size, block=block, width=max(16, block), rows=ROWS, turned=rotation is not None,
        wide=wide(heads.dtype, heads.device), num_warps=4, **early(heads.device),
    )  # fmt: skip
    return out


@kernel("parts")
def _spread(
    source: Any, cos: Any, sin: Any, signs: Any, out: Any, norm: Any, parts: Any, token_stride: Any, count: constexpr,
    head_size: constexpr, block: constexpr, width: constexpr, rows: constexpr, turned: constexpr, wide: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """Blocks of neighbouring numbers, which may be of several heads and tokens."""
    each: constexpr = head_size // block
    i = tl.arange(0, width)
    # Written once, long before: it need not wait.
    matrix = tl.load(signs + i[:, None] * block + i[None, :], mask=(i < block)[:, None] & (i < block)[None, :], other=0)
    wait_for_inputs(early)
    number = tl.program_id(0) * rows + tl.arange(0, rows)
    real = (number < parts)[:, None] & (i < block)[None, :]
    token = (number // (count * each)).to(tl.int64)[:, None]
    head = source + token * token_stride + (number // each % count)[:, None] * head_size
    d = (number % each * block)[:, None] + i[None, :]
    x = tl.load(head + d, mask=real, other=0)
    if turned:
        half: constexpr = head_size // 2
        partner = tl.load(head + tl.where(d < half, d + half, d - half), mask=real, other=0).to(tl.float32)
        across = tl.load(cos + token * head_size + d, mask=real, other=0).to(tl.float32)
        along = tl.load(sin + token * head_size + d, mask=real, other=0).to(tl.float32)
        x = ((x.to(tl.float32) * across).to(x.dtype).to(tl.float32) + partner * along).to(x.dtype)
    if wide:
        x, matrix = x.to(tl.float32), matrix.to(tl.float32)
    spread = tl.dot(x, matrix, input_precision="ieee") * norm
    tl.store(out + number.to(tl.int64)[:, None] * block + i[None, :], spread, mask=real)
