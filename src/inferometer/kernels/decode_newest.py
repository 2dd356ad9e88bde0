"""Decode attention: the query, and the newest key and value, as the launch ahead leaves them."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.support import constexpr, kernel, tl


@kernel()
def turn(
    vector: Any, cos: Any, sin: Any, row: Any, d: Any, real: Any, head_size: constexpr, turned: constexpr,
) -> Any:  # fmt: skip
    """The elements d of the head at `vector`, rotated by the angles of the row if `turned`, rounded as `rotate` does."""
    x = tl.load(vector + d, mask=real, other=0)
    if turned:
        half: constexpr = head_size // 2
        partner = tl.load(vector + tl.where(d < half, d + half, d - half), mask=real, other=0)
        across = tl.load(cos + row * head_size + d, mask=d < head_size, other=0).to(tl.float32)
        along = tl.load(sin + row * head_size + d, mask=d < head_size, other=0).to(tl.float32)
        part = (x.to(tl.float32) * across).to(x.dtype).to(tl.float32)
        x = (part + partner.to(tl.float32) * along).to(x.dtype)
    return x


@kernel()
def newest_of(
    key: Any, value: Any, cos: Any, sin: Any, row: Any, head_size: constexpr, width: constexpr, turned: constexpr,
) -> Any:  # fmt: skip
    """The key and value at these addresses, the key rotated if need be."""
    d = tl.arange(0, width)
    own_value = tl.load(value + d, mask=d < head_size, other=0)
    return turn(key, cos, sin, row, d, d < head_size, head_size, turned), own_value


@kernel()
def newest_place(entries: Any, newest: Any, ours: Any, page_size: constexpr) -> Any:
    """Where in the cache the newest key goes, if `ours`. The launch that opens the sweep may write this entry of the block table, and no
    other: so it is read behind the wait, and past the L1 cache, which may hold it from when its neighbours were read."""
    page = tl.load(entries + newest // page_size, mask=ours, other=0, cache_modifier=".cg")
    return page.to(tl.int64) * page_size + newest % page_size


@kernel()
def put_newest(
    keys: Any, values: Any, own_key: Any, own_value: Any, place: Any, head: Any, ours: Any, kv_heads: constexpr, head_size: constexpr,
    width: constexpr,
) -> None:  # fmt: skip
    """Stores them at their place of the cache where `ours`."""
    d = tl.arange(0, width)
    at = place * (kv_heads * head_size) + head * head_size + d
    tl.store(keys + at, own_key, mask=(d < head_size) & ours)
    tl.store(values + at, own_value, mask=(d < head_size) & ours)
