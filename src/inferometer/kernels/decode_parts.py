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
def handed_over(
    partial: Any, weight: Any, at_head: Any, used: Any, parts: Any, own: Any, own_mass: Any, most: constexpr, head_size: constexpr,
    width: constexpr,
) -> Any:  # fmt: skip
    """As `combined`, by the program of the last part, which has its own."""
    d = tl.arange(0, width)
    part = tl.arange(0, most)
    theirs = part < used - 1
    real = theirs[:, None] & (d < head_size)[None, :]
    at_mass = weight + at_head * parts + part
    at = partial + (at_head * parts + part)[:, None] * head_size + d[None, :]
    bits = tl.load(at, mask=real, other=0, volatile=True)
    masses = tl.load(at_mass, mask=theirs, other=0, volatile=True)
    while (tl.max((bits == -1).to(tl.int32)) | tl.max((masses == -1).to(tl.int32))) != 0:
        bits = tl.load(at, mask=real, other=0, volatile=True)
        masses = tl.load(at_mass, mask=theirs, other=0, volatile=True)
    # No thread waits any more for what is taken away here.
    tl.debug_barrier()
    tl.store(at, tl.full([most, width], -1, tl.int32), mask=real)
    tl.store(at_mass, tl.full([most], -1, tl.int32), mask=theirs)
    mass = tl.where(theirs, masses.to(tl.float32, bitcast=True), float("-inf"))
    highest = tl.maximum(tl.maximum(tl.max(mass, 0), own_mass), -1.0e38)
    share = tl.exp2(mass - highest)
    ours = tl.exp2(own_mass - highest)
    whole = tl.sum(share, 0) + ours
    sums = tl.sum(share[:, None] * bits.to(tl.float32, bitcast=True), 0) + ours * own
    return sums / tl.where(whole > 0, whole, 1.0)


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
    partial: Any, mass: Any, context: Any, parts: constexpr, keys: constexpr, inputs: constexpr, width: constexpr, head_size: constexpr,
) -> Any:  # fmt: skip
    """The row (width,) of `inputs` numbers that parts of `keys` keys belong to, rounded as they are; a head's size is a multiple of 8."""
    group = tl.arange(0, width // 8)[:, None]
    real = group < inputs // 8
    head = group * 8 // head_size
    d = tl.arange(0, 8)[None, :]
    best = tl.full([width // 8, 1], -1.0e38, tl.float32)
    total = tl.zeros([width // 8, 1], tl.float32)
    row = tl.zeros([width // 8, 8], tl.float32)
    # Nothing here waits for another thread, so that all loads are under way at once.
    for part in tl.static_range(parts):
        seen = real & (part * keys < context)
        own = tl.load(mass + part * (inputs // head_size) + head, mask=seen, other=float("-inf"))
        mean = tl.load(partial + part * inputs + group * 8 + d, mask=seen & (d >= 0), other=0)
        higher = tl.maximum(best, own)
        shrink = tl.exp2(best - higher)
        share = tl.exp2(own - higher)
        total = total * shrink + share
        row = row * shrink + share * mean.to(tl.float32)
        best = higher
    row = row / tl.where(total > 0, total, 1.0)
    return tl.reshape(row, [width]).to(partial.dtype.element_ty)
