"""Attention of one query token a sequence to the keys and values in its pages."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.decode_launch import ALONE, GROUPED, Cut, cut
from inferometer.kernels.support import Tiles, capability, constexpr, kernel, look_up, power_of_two, processors, tl, usable, wide

LOG2_E = math.log2(math.e)


def paged_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    seats: Tensor,
    contexts: Tensor,
    *,
    page_size: int,
    scale: float,
    longest: int,
    slopes: Tensor | None = None,
) -> Tensor:
    """Softmax(scale * query . keys + bias) . values for every row, over the `contexts[row]` positions of its sequence.

    query: (rows, heads, head_size), the last dimension contiguous. keys, values: (places, kv_heads, head_size), contiguous, of the
    same dtype; position p of the sequence in seat s is at place table[s, p // page_size] * page_size + p % page_size.
    table: int32 (seats, stride). seats, contexts: int32 (rows,); a context counts the token that asks, and 0 marks a padding row,
    whose result is zeros. longest: no context is above it, in no replay either if the call is captured in a graph; it decides
    into how many parts contexts are split. slopes: float32 (heads,), adds slope * (key position - query position).
    Returns (rows, heads, head_size), contiguous.

    Moves 2 * sum(contexts) * kv_heads * head_size elements of keys and values, and 2 * rows * heads * head_size of queries and results.
    """
    if usable(query.device):
        return paged_decode_triton(
            query, keys, values, table, seats, contexts, page_size=page_size, scale=scale, longest=longest, slopes=slopes
        )
    return paged_decode_torch(query, keys, values, table, seats, contexts, page_size=page_size, scale=scale, slopes=slopes)


def paged_decode_torch(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    seats: Tensor,
    contexts: Tensor,
    *,
    page_size: int,
    scale: float,
    slopes: Tensor | None = None,
) -> Tensor:
    """The reference: every row's keys and values copied side by side, padded to the longest."""
    (rows, heads, head_size), kv_heads = query.shape, keys.shape[1]
    longest = max(1, int(contexts.max())) if rows else 1
    position = torch.arange(longest, device=query.device)
    seen = position < contexts[:, None]
    places = table[seats.long()[:, None], torch.where(seen, position // page_size, 0)].long() * page_size + position % page_size
    # What lies in unused places may be no number, and 0 times that is no number either: the first key stands in for them.
    places = torch.where(seen, places, torch.where(seen[:, :1], places[:, :1], 0)).flatten()
    k, v = (held.index_select(0, places).view(rows, longest, kv_heads, head_size).transpose(1, 2) for held in (keys, values))
    mask = None
    if slopes is not None:
        distance = position - contexts[:, None] + 1
        mask = (slopes.view(kv_heads, -1, 1) * distance[:, None, None, :]).masked_fill(~seen[:, None, None, :], -math.inf).to(query.dtype)
    elif not bool(seen.all()):
        mask = seen[:, None, None, :]
    # The query heads that share a key head become its queries: no key is copied for each of them.
    q = query.reshape(rows, kv_heads, heads // kv_heads, head_size)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).reshape(rows, heads, head_size)
    return out if mask is None else out.masked_fill((contexts == 0)[:, None, None], 0)


def paged_decode_triton(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    seats: Tensor,
    contexts: Tensor,
    *,
    page_size: int,
    scale: float,
    longest: int,
    slopes: Tensor | None = None,
    tiling: Tiles | None = None,
    cutting: Cut | None = None,
) -> Tensor:
    """The kernels. tiling, cutting: instead of what the tables and `cut` say."""
    (rows, heads, head_size), kv_heads = query.shape, keys.shape[1]
    out = torch.empty((rows, heads, head_size), dtype=query.dtype, device=query.device)
    if rows == 0:
        return out
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert query.stride(2) == table.stride(1) == 1
    group = heads // kv_heads
    chosen = tiling or look_up(ALONE if group == 1 else GROUPED, capability(query.device), head_size * query.element_size())
    members = 1 if group == 1 else min(chosen.queries, power_of_two(max(16, group)))
    programs = kv_heads * -(-group // members)
    split = cutting or cut(rows * programs, longest, processors(query.device))
    partial, weight = out, out
    if split.parts > 1:
        partial = torch.empty((rows, heads, split.parts, head_size), dtype=torch.float32, device=query.device)
        weight = torch.empty((rows, heads, split.parts), dtype=torch.float32, device=query.device)
    width = power_of_two(max(16, head_size))
    (_attend_alone if group == 1 else _attend_group).launch(
        (programs, rows, split.parts), query, keys, values, table, seats, contexts, query if slopes is None else slopes, partial, weight,
        query.stride(0), query.stride(1), table.stride(0), scale * LOG2_E, heads=heads, kv_heads=kv_heads, head_size=head_size, width=width,
        members=members, page_size=page_size, block=chosen.block, stages=chosen.stages, least=split.least, whole=split.parts == 1,
        biased=slopes is not None, wide=wide(query.dtype, query.device), num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    if split.parts > 1:
        _combine.launch(
            (heads, rows), partial, weight, contexts, out, heads, head_size, width, split.parts, chosen.block, split.least, num_warps=4
        )
    return out


@kernel()
def _span(context: Any, parts: Any, block: constexpr, least: constexpr) -> Any:
    """Keys of each part of a context, a multiple of `block`: no more parts than `parts`, nor than `least` keys each are worth."""
    used = tl.maximum(tl.minimum(parts, (context + least - 1) // least), 1)
    return tl.maximum((context + used * block - 1) // (used * block), 1) * block


@kernel("seats", "contexts", "table_row")
def _attend_alone(
    query: Any, keys: Any, values: Any, table: Any, seats: Any, contexts: Any, slopes: Any, out: Any, weight: Any, query_row: Any,
    query_head: Any, table_row: Any, scale: Any, heads: constexpr, kv_heads: constexpr, head_size: constexpr, width: constexpr,
    members: constexpr, page_size: constexpr, block: constexpr, stages: constexpr, least: constexpr, whole: constexpr, biased: constexpr,
    wide: constexpr,
) -> None:  # fmt: skip
    """One query head with keys of its own. Every key of the block has its own running maximum and sums until the end, so that
    nothing in the loop waits for another warp."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    part = tl.program_id(2)
    context = tl.load(contexts + row)
    span = _span(context, tl.num_programs(2), block, least)
    start = part * span
    stop = tl.minimum(start + span, context)
    if (start >= stop) & (not whole):
        return

    d = tl.arange(0, width)
    lane = tl.arange(0, block)
    q = tl.load(query + row.to(tl.int64) * query_row + head * query_head + d, mask=d < head_size, other=0).to(tl.float32) * scale
    entries = table + tl.load(seats + row).to(tl.int64) * table_row
    if biased:
        slope = tl.load(slopes + head) * 1.4426950408889634
    best = tl.full([block], -1.0e38, tl.float32)
    total = tl.zeros([block], tl.float32)
    sums = tl.zeros([block, width], tl.float32)
    position = start + lane
    page = tl.load(entries + position // page_size, mask=position < stop, other=0)
    for base in tl.range(start, stop, block, num_stages=stages):
        position = base + lane
        seen = position < stop
        place = page.to(tl.int64) * page_size + position % page_size
        # The next iteration's pages come while this one's keys do.
        page = tl.load(entries + (position + block) // page_size, mask=position + block < stop, other=0)
        at = (place * (kv_heads * head_size) + head * head_size)[:, None] + d[None, :]
        real = seen[:, None]
        if head_size != width:
            real = real & (d < head_size)[None, :]
        k = tl.load(keys + at, mask=real, other=0)
        v = tl.load(values + at, mask=real, other=0)
        score = tl.sum(q[None, :] * k.to(tl.float32), 1)
        if biased:
            score += slope * (position - context + 1).to(tl.float32)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(best, score)
        shrink = tl.exp2(best - higher)
        p = tl.exp2(score - higher)
        total = total * shrink + p
        sums = sums * shrink[:, None] + p[:, None] * v.to(tl.float32)
        best = higher

    highest = tl.max(best, 0)
    share = tl.exp2(best - highest)
    mass = tl.sum(total * share, 0)
    result = tl.sum(sums * share[:, None], 0) / tl.where(mass > 0, mass, 1.0)
    at_head = row.to(tl.int64) * heads + head
    if whole:
        tl.store(out + at_head * head_size + d, result, mask=d < head_size)
    else:
        at_part = at_head * tl.num_programs(2) + part
        tl.store(out + at_part * head_size + d, result, mask=d < head_size)
        tl.store(weight + at_part, highest + tl.log2(mass))


@kernel("seats", "contexts", "table_row")
def _attend_group(
    query: Any, keys: Any, values: Any, table: Any, seats: Any, contexts: Any, slopes: Any, out: Any, weight: Any, query_row: Any,
    query_head: Any, table_row: Any, scale: Any, heads: constexpr, kv_heads: constexpr, head_size: constexpr, width: constexpr,
    members: constexpr, page_size: constexpr, block: constexpr, stages: constexpr, least: constexpr, whole: constexpr, biased: constexpr,
    wide: constexpr,
) -> None:  # fmt: skip
    """Query heads that share a key head, `members` of them, padded to the rows of a matrix product."""
    group: tl.constexpr = heads // kv_heads
    shares: tl.constexpr = (group + members - 1) // members
    kv_head = tl.program_id(0) // shares
    member = tl.program_id(0) % shares * members + tl.arange(0, members)
    row = tl.program_id(1)
    part = tl.program_id(2)
    context = tl.load(contexts + row)
    span = _span(context, tl.num_programs(2), block, least)
    start = part * span
    stop = tl.minimum(start + span, context)
    if (start >= stop) & (not whole):
        return

    d = tl.arange(0, width)
    lane = tl.arange(0, block)
    head = kv_head * group + member
    real_head = member < group
    ours = real_head[:, None] & (d < head_size)[None, :]
    q = tl.load(query + row.to(tl.int64) * query_row + head[:, None] * query_head + d[None, :], mask=ours, other=0)
    if wide:
        q = q.to(tl.float32)
    entries = table + tl.load(seats + row).to(tl.int64) * table_row
    if biased:
        slope = tl.load(slopes + head, mask=real_head, other=0) * 1.4426950408889634
    best = tl.full([members], -1.0e38, tl.float32)
    total = tl.zeros([members], tl.float32)
    sums = tl.zeros([members, width], tl.float32)
    position = start + lane
    page = tl.load(entries + position // page_size, mask=position < stop, other=0)
    for base in tl.range(start, stop, block, num_stages=stages):
        position = base + lane
        seen = position < stop
        place = page.to(tl.int64) * page_size + position % page_size
        # The next iteration's pages come while this one's keys do.
        page = tl.load(entries + (position + block) // page_size, mask=position + block < stop, other=0)
        at = (place * (kv_heads * head_size) + kv_head * head_size)[:, None] + d[None, :]
        real = seen[:, None]
        if head_size != width:
            real = real & (d < head_size)[None, :]
        k = tl.load(keys + at, mask=real, other=0)
        v = tl.load(values + at, mask=real, other=0)
        if wide:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if biased:
            score += slope[:, None] * (position - context + 1).to(tl.float32)[None, :]
        score = tl.where(seen[None, :], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        shrink = tl.exp2(best - higher)
        p = tl.exp2(score - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        sums = tl.dot(p.to(v.dtype), v, sums * shrink[:, None], input_precision="ieee")
        best = higher

    result = sums / tl.where(total > 0, total, 1.0)[:, None]
    at_head = row.to(tl.int64) * heads + head
    if whole:
        tl.store(out + at_head[:, None] * head_size + d[None, :], result, mask=ours)
    else:
        at_part = at_head * tl.num_programs(2) + part
        tl.store(out + at_part[:, None] * head_size + d[None, :], result, mask=ours)
        tl.store(weight + at_part, best + tl.log2(total), mask=real_head)


@kernel("contexts")
def _combine(
    partial: Any, weight: Any, contexts: Any, out: Any, heads: constexpr, head_size: constexpr, width: constexpr, parts: constexpr,
    block: constexpr, least: constexpr,
) -> None:  # fmt: skip
    """The parts of a context, each softmax weighted with its mass (log2)."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    context = tl.load(contexts + row)
    part = tl.arange(0, parts)
    there = part * _span(context, parts, block, least) < context
    d = tl.arange(0, width)
    at_head = row.to(tl.int64) * heads + head
    mass = tl.load(weight + at_head * parts + part, mask=there, other=float("-inf"))
    share = tl.exp2(mass - tl.maximum(tl.max(mass, 0), -1.0e38))
    whole = tl.sum(share, 0)
    real = there[:, None] & (d < head_size)[None, :]
    sums = tl.load(partial + (at_head * parts + part)[:, None] * head_size + d[None, :], mask=real, other=0)
    result = tl.sum(sums * share[:, None], 0) / tl.where(whole > 0, whole, 1.0)
    tl.store(out + at_head * head_size + d, result, mask=d < head_size)
