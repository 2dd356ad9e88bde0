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
    partial: Any, weight: Any, first_head: Any, count: Any, used: Any, parts: Any, out: Any, most: constexpr, group: constexpr,
    head_size: constexpr, width: constexpr,
) -> None:  # fmt: skip
    """Stores the results of `count` heads from `first_head` on, of `group` at most (a power of two), as `combined` has them."""
    # As many parts of all heads at once as registers hold: a part after another would wait for memory as often.
    fitting: tl.constexpr = 8192 // (group * width)
    together: tl.constexpr = most if most <= fitting else (fitting if fitting > 0 else 1)
    head = tl.arange(0, group)
    d = tl.arange(0, width)
    every = tl.arange(0, most)
    part = tl.arange(0, together)
    at_head = first_head + head
    real = head < count
    lane = (d < head_size)[None, None, :]
    there = real[:, None] & (part < used)[None, :]
    at = at_head[:, None] * parts + part[None, :]
    # All loads are under way before the first is waited for.
    mass = tl.load(
        weight + at_head[:, None] * parts + every[None, :], mask=real[:, None] & (every < used)[None, :], other=float("-inf"),
        cache_modifier=".cg",
    )  # fmt: skip
    own = tl.load(weight + at, mask=there, other=float("-inf"), cache_modifier=".cg")
    result = tl.load(partial + at[:, :, None] * head_size + d[None, None, :], mask=there[:, :, None] & lane, other=0, cache_modifier=".cg")
    highest = tl.maximum(tl.max(mass, 1), -1.0e38)
    whole = tl.sum(tl.exp2(mass - highest[:, None]), 1)
    sums = tl.sum(tl.exp2(own - highest[:, None])[:, :, None] * result, 1)
    for first in range(together, used, together):
        part = first + tl.arange(0, together)
        there = real[:, None] & (part < used)[None, :]
        at = at_head[:, None] * parts + part[None, :]
        own = tl.load(weight + at, mask=there, other=float("-inf"), cache_modifier=".cg")
        result = tl.load(
            partial + at[:, :, None] * head_size + d[None, None, :], mask=there[:, :, None] & lane, other=0, cache_modifier=".cg"
        )
        sums += tl.sum(tl.exp2(own - highest[:, None])[:, :, None] * result, 1)
    result = sums / tl.where(whole > 0, whole, 1.0)[:, None]
    tl.store(out + at_head[:, None] * head_size + d[None, :], result, mask=real[:, None] & (d < head_size)[None, :])


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
