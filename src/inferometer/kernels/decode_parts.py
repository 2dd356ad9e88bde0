"""Decode attention: what joins the parts of a context."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.support import constexpr, kernel, tl


@kernel()
def combined(
    partial: Any, weight: Any, at_head: Any, used: Any, parts: Any, most: constexpr, head_size: constexpr, width: constexpr,
) -> Any:  # fmt: skip
    """A head's result from the parts of its context, each softmax weighted with its mass (log2); in their order, whoever came last."""
    together: tl.constexpr = most if most * width <= 4096 else 4096 // width
    d = tl.arange(0, width)
    every = tl.arange(0, most)
    part = tl.arange(0, together)
    at = (at_head * parts + part)[:, None] * head_size + d[None, :]
    # All loads are under way before the first is waited for. Not from the L1 cache: other processors have written them.
    mass = tl.load(weight + at_head * parts + every, mask=every < used, other=float("-inf"), cache_modifier=".cg")
    own = tl.load(weight + at_head * parts + part, mask=part < used, other=float("-inf"), cache_modifier=".cg")
    result = tl.load(partial + at, mask=(part < used)[:, None] & (d < head_size)[None, :], other=0, cache_modifier=".cg")
    highest = tl.maximum(tl.max(mass, 0), -1.0e38)
    whole = tl.sum(tl.exp2(mass - highest), 0)
    sums = tl.exp2(own - highest)[:, None] * result
    for first in range(together, used, together):
        part = first + tl.arange(0, together)
        share = tl.exp2(tl.load(weight + at_head * parts + part, mask=part < used, other=float("-inf"), cache_modifier=".cg") - highest)
        at = (at_head * parts + part)[:, None] * head_size + d[None, :]
        sums += share[:, None] * tl.load(
            partial + at, mask=(part < used)[:, None] & (d < head_size)[None, :], other=0, cache_modifier=".cg"
        )
    return tl.sum(sums, 0) / tl.where(whole > 0, whole, 1.0)


@kernel()
def combined_group(
    partial: Any, weight: Any, at_head: Any, real_head: Any, used: Any, parts: Any, most: constexpr, head_size: constexpr,
    members: constexpr, width: constexpr,
) -> Any:  # fmt: skip
    """The results of several heads, as `combined` has them."""
    part = tl.arange(0, most)
    there = real_head[:, None] & (part < used)[None, :]
    mass = tl.load(weight + at_head[:, None] * parts + part[None, :], mask=there, other=float("-inf"), cache_modifier=".cg")
    highest = tl.maximum(tl.max(mass, 1), -1.0e38)
    whole = tl.sum(tl.exp2(mass - highest[:, None]), 1)
    d = tl.arange(0, width)
    sums = tl.zeros([members, width], tl.float32)
    for other in range(used):
        at = at_head * parts + other
        share = tl.exp2(tl.load(weight + at, mask=real_head, other=float("-inf"), cache_modifier=".cg") - highest)
        real = real_head[:, None] & (d < head_size)[None, :]
        sums += share[:, None] * tl.load(partial + at[:, None] * head_size + d[None, :], mask=real, other=0, cache_modifier=".cg")
    return sums / tl.where(whole > 0, whole, 1.0)[:, None]


@kernel()
def joined_row(
    partial: Any, mass: Any, context: Any, parts: constexpr, keys: constexpr, heads: constexpr, head_size: constexpr,
) -> Any:  # fmt: skip
    """The row (heads * head_size,) that parts of `keys` keys belong to, rounded as they are. All sizes but `parts` are powers of two."""
    head = tl.arange(0, heads)[:, None]
    d = tl.arange(0, head_size)[None, :]
    best = tl.full([heads, 1], -1.0e38, tl.float32)
    total = tl.zeros([heads, 1], tl.float32)
    row = tl.zeros([heads, head_size], tl.float32)
    # Nothing here waits for another thread, so that all loads are under way at once.
    for part in tl.static_range(parts):
        seen = part * keys < context
        own = tl.load(mass + part * heads + head, mask=seen & (head >= 0), other=float("-inf"))
        mean = tl.load(partial + (part * heads + head) * head_size + d, mask=seen & (head >= 0) & (d >= 0), other=0)
        higher = tl.maximum(best, own)
        shrink = tl.exp2(best - higher)
        share = tl.exp2(own - higher)
        total = total * shrink + share
        row = row * shrink + share * mean.to(tl.float32)
        best = higher
    row = row / tl.where(total > 0, total, 1.0)
    return tl.reshape(row, [heads * head_size]).to(partial.dtype.element_ty)
