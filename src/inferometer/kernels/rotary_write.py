"""Queries and keys of a sweep's tokens are rotated by their positions, and keys and values go to their places in a layer's pages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.kv_write import kv_write_torch
from inferometer.kernels.support import constexpr, early, kernel, power_of_two, tl, usable, wait_for_inputs

ELEMENTS = 2048
"""Elements of heads that one program moves: 16 for each of 128 threads, two loads of 16 bytes."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (tokens, heads, head_size) rotated by the cosines and signed sines of its tokens, each (tokens, 1, head_size)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def rotary_write(heads: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> Tensor:
    """Rotate the queries and keys among `heads`, write key i to keys[places[i]] and value i to values[places[i]], in one launch.

    heads: (tokens, queries + 2 * kv_heads, head_size), a token's heads side by side: queries, keys, values, as the fused projection
    gives them. cos, sin: (tokens, 1, head_size), contiguous, see `rotate`, whose rounding is kept. keys, values: (places, kv_heads,
    head_size), contiguous. places: int64 (tokens,); a negative one marks padding, whose key and value are not written.
    Returns the rotated queries (tokens, queries, head_size), contiguous.

    Moves 2 * tokens * (queries + 2 * kv_heads) * head_size elements, each head read and written once, and 2 * tokens * head_size of
    cosines and sines.
    """
    if usable(heads.device):
        return rotary_write_triton(heads, cos, sin, keys, values, places)
    return rotary_write_torch(heads, cos, sin, keys, values, places)


def rotary_apart(heads: Tensor, kv_heads: int, cos: Tensor, sin: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rotated queries (tokens, queries, head_size), rotated keys and values (tokens, kv_heads, head_size) among `heads`, in one launch,
    for attention that no cache stands behind.

    heads, cos, sin: as for `rotary_write`. numbers: int64 (tokens,), 0, 1, 2, ... Each is contiguous; moves what `rotary_write` moves.
    """
    key, value = (heads.new_empty(heads.shape[0], kv_heads, heads.shape[2]) for _ in range(2))
    return rotary_write(heads, cos, sin, key, value, numbers), key, value


def rotary_write_torch(heads: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> Tensor:
    """The reference."""
    kv_heads = keys.shape[1]
    query, key, value = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], 1)
    kv_write_torch(rotate(key, cos, sin), value, keys, values, places)
    return rotate(query, cos, sin)


def rotary_write_triton(heads: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> Tensor:
    """The kernel."""
    (tokens, total, head_size), kv_heads = heads.shape, keys.shape[1]
    queries = total - 2 * kv_heads
    out = torch.empty((tokens, queries, head_size), dtype=heads.dtype, device=heads.device)
    if tokens == 0:
        return out
    assert heads.stride()[1:] == (head_size, 1)
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    width = power_of_two(head_size // 2)
    block = min(power_of_two(total), max(1, ELEMENTS // (2 * width)))
    _write.launch(
        (tokens, -(-total // block)), heads, cos, sin, keys, values, places, out, heads.stride(0), queries=queries, kv_heads=kv_heads,
        head_size=head_size, block=block, width=width, num_warps=4, **early(heads.device),
    )  # fmt: skip
    return out


@kernel("places")
def _write(
    heads: Any, cos: Any, sin: Any, keys: Any, values: Any, places: Any, out: Any, token_stride: Any, queries: constexpr,
    kv_heads: constexpr, head_size: constexpr, block: constexpr, width: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """Some heads of a token, as pairs: each element's partner in the rotation is half a head away."""
    wait_for_inputs(early)
    half: constexpr = head_size // 2
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + token)
    head = tl.program_id(1) * block + tl.arange(0, block)[:, None]
    pair = tl.arange(0, width)[None, :]
    real = (head < queries + 2 * kv_heads) & (pair < half)
    at = head * head_size + pair
    source = heads + token * token_stride + at
    low = tl.load(source, mask=real, other=0)
    high = tl.load(source + half, mask=real, other=0)
    angle = token * head_size + pair
    cos_low = tl.load(cos + angle, mask=pair < half, other=0).to(tl.float32)
    cos_high = tl.load(cos + angle + half, mask=pair < half, other=0).to(tl.float32)
    sin_low = tl.load(sin + angle, mask=pair < half, other=0).to(tl.float32)
    sin_high = tl.load(sin + angle + half, mask=pair < half, other=0).to(tl.float32)

    x, y = low.to(tl.float32), high.to(tl.float32)
    dtype = low.dtype
    rotated = head < queries + kv_heads
    low = tl.where(rotated, ((x * cos_low).to(dtype).to(tl.float32) + y * sin_low).to(dtype), low)
    high = tl.where(rotated, ((y * cos_high).to(dtype).to(tl.float32) + x * sin_high).to(dtype), high)

    asks = real & (head < queries)
    target = out + token * (queries * head_size) + at
    tl.store(target, low, mask=asks)
    tl.store(target + half, high, mask=asks)
    if place >= 0:
        first = place * (kv_heads * head_size) + at
        is_key = real & (head >= queries) & rotated
        target = keys + first - queries * head_size
        tl.store(target, low, mask=is_key)
        tl.store(target + half, high, mask=is_key)
        is_value = real & (head >= queries + kv_heads)
        target = values + first - (queries + kv_heads) * head_size
        tl.store(target, low, mask=is_value)
        tl.store(target + half, high, mask=is_value)
