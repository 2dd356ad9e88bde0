"""Keys and values of a sweep's tokens go to their places in a layer's pages."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from inferometer.kernels.support import constexpr, kernel, power_of_two, tl, usable

ELEMENTS = 2048
"""Elements of a key (and of a value) that one program moves: 16 for each of 128 threads."""


def kv_write(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> None:
    """Write key[i] to keys[places[i]] and value[i] to values[places[i]], in one launch.

    key, value: (tokens, kv_heads, head_size), views of any strides whose last dimension is contiguous. keys, values: (places,
    kv_heads, head_size), contiguous. places: int64 (tokens,); a negative one marks padding, which is not written.
    Moves 4 * tokens * kv_heads * head_size elements: keys and values, each read and written once.
    """
    if usable(keys.device):
        kv_write_triton(key, value, keys, values, places)
    else:
        kv_write_torch(key, value, keys, values, places)


def kv_write_torch(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> None:
    """The reference."""
    if bool((places < 0).any()):
        real = places >= 0
        key, value, places = key[real], value[real], places[real]
    keys.index_copy_(0, places, key.to(keys.dtype))
    values.index_copy_(0, places, value.to(values.dtype))


def kv_write_triton(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> None:
    """The kernel."""
    tokens, kv_heads, head_size = key.shape
    if tokens == 0:
        return
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert key.stride(2) == value.stride(2) == 1
    width = power_of_two(head_size)
    heads = min(power_of_two(kv_heads), max(1, ELEMENTS // width))
    grid = (tokens, -(-kv_heads // heads))
    strides = (key.stride(0), key.stride(1), value.stride(0), value.stride(1))
    _write.launch(grid, key, value, keys, values, places, *strides, kv_heads, head_size, heads, width, num_warps=4)


@kernel("places")
def _write(
    key: Any, value: Any, keys: Any, values: Any, places: Any, key_token: Any, key_head: constexpr, value_token: Any, value_head: constexpr,
    kv_heads: constexpr, head_size: constexpr, heads: constexpr, width: constexpr,
) -> None:  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + token)
    if place >= 0:
        head = tl.program_id(1) * heads + tl.arange(0, heads)[:, None]
        part = tl.arange(0, width)[None, :]
        real = (head < kv_heads) & (part < head_size)
        target = place * (kv_heads * head_size) + head * head_size + part
        tl.store(keys + target, tl.load(key + token * key_token + head * key_head + part, mask=real), mask=real)
        tl.store(values + target, tl.load(value + token * value_token + head * value_head + part, mask=real), mask=real)
