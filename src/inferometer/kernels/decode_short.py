"""Attention of one query token to contexts so short that their keys and values are in registers before the query is there."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.decode_launch import AHEAD, RESIDENT
from inferometer.kernels.decode_newest import Fresh, newest_place, put_newest, turn
from inferometer.kernels.decode_parts import handed_over
from inferometer.kernels.handover import hand, hand_where, handover
from inferometer.kernels.head_parts import HeadParts
from inferometer.kernels.support import constexpr, early, kernel, power_of_two, processors, tl

MOST_PARTS = 8
"""Of a context, whose parts whoever reads them joins: all of them read all."""
MOST_JOINED = 16
"""Of a context whose parts are joined here."""
HELD = 8192
"""Numbers of keys that a program holds, and as many of values: half of the registers that are kept for it."""
MOST_KEYS = 128
WARPS = 4


def keys_of(head_size: int) -> int:
    """Keys of a part."""
    return min(MOST_KEYS, HELD // power_of_two(max(16, head_size)))


def serves(query: Tensor, kv_heads: int, longest: int, most: int = MOST_JOINED) -> bool:
    """Whether rows of which no context is above `longest` are attended to here, in at most `most` parts: heads with keys of their own, and
    no more programs than begin while the launch ahead still runs."""
    rows, heads, head_size = query.shape
    if heads != kv_heads or head_size % 8 or head_size > 128 or query.dtype.itemsize != 2:
        return False
    parts = -(-longest // keys_of(head_size))
    return rows > 0 and 0 < parts <= most and rows * heads * parts <= AHEAD * processors(query.device)


def decode_short(
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
    fresh: Fresh,
    slopes: Tensor | None = None,
) -> Tensor:
    """What `paged_decode` returns. Only where `serves`; arguments as there."""
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    room = handover(query.device)
    parts = -(-longest // keys_of(query.shape[2]))
    mass = room[query.numel() * parts :]
    _launch(query, keys, values, table, seats, contexts, slopes, room, mass, out, fresh, page_size, scale, parts, joined=True)
    return out


def decode_parts(
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
    fresh: Fresh,
    slopes: Tensor | None = None,
) -> HeadParts:
    """As `decode_short`, before the parts of a context are joined.

    Moves what `paged_decode` does; of results parts * rows * heads * head_size elements, and as many again by whoever joins them.
    """
    rows, heads, head_size = query.shape
    parts = -(-longest // keys_of(head_size))
    partial = torch.empty((rows, parts, heads, head_size), dtype=query.dtype, device=query.device)
    mass = torch.empty((rows, parts, heads), dtype=torch.float32, device=query.device)
    _launch(query, keys, values, table, seats, contexts, slopes, partial, mass, partial, fresh, page_size, scale, parts, joined=False)
    return HeadParts(partial, mass, contexts, keys_of(head_size))


def _launch(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    seats: Tensor,
    contexts: Tensor,
    slopes: Tensor | None,
    partial: Tensor,
    mass: Tensor,
    out: Tensor,
    fresh: Fresh,
    page_size: int,
    scale: float,
    parts: int,
    *,
    joined: bool,
) -> None:
    rows, heads, head_size = query.shape
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert query.stride(2) == table.stride(1) == fresh.key.stride(2) == fresh.value.stride(2) == 1
    cos, sin = (query, query) if fresh.rotation is None else fresh.rotation
    assert fresh.rotation is None or (cos.is_contiguous() and sin.is_contiguous())
    attend_short.launch(
        (heads, rows, parts), query, keys, values, table, seats, contexts, query if slopes is None else slopes, partial, mass, out,
        fresh.key, fresh.value, cos, sin, query.stride(0), query.stride(1), table.stride(0), fresh.key.stride(0), fresh.key.stride(1),
        fresh.value.stride(0), fresh.value.stride(1), scale * math.log2(math.e), head_size=head_size,
        width=power_of_two(max(16, head_size)), page_size=page_size, block=keys_of(head_size), most=power_of_two(parts), joined=joined,
        biased=slopes is not None, turned=fresh.rotation is not None, num_warps=WARPS, maxnreg=65536 // RESIDENT // (32 * WARPS),
        **early(query.device),
    )  # fmt: skip


@kernel("seats", "contexts", "table_row", "key", "value", "key_row", "value_row")
def attend_short(
    query: Any, keys: Any, values: Any, table: Any, seats: Any, contexts: Any, slopes: Any, partial: Any, mass: Any, out: Any, key: Any,
    value: Any, cos: Any, sin: Any, query_row: Any, query_head: Any, table_row: Any, key_row: Any, key_head: Any, value_row: Any,
    value_head: Any, scale: Any, head_size: constexpr, width: constexpr, page_size: constexpr, block: constexpr, most: constexpr,
    joined: constexpr, biased: constexpr, turned: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One head and `block` keys of one row: all that is in the cache is on its way before the launch ahead has ended.

    joined: the last part's program takes what the others hand over, and leaves the head's result; else all leave theirs.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(0)
    heads = tl.num_programs(0)
    row = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    parts = tl.num_programs(2)
    context = tl.load(contexts + row)
    entries = table + tl.load(seats + row).to(tl.int64) * table_row
    # A row of padding has one part, of no keys.
    used = tl.maximum((context + block - 1) // block, 1)
    if part >= used:
        return
    newest = context - 1
    position = part * block + tl.arange(0, block)
    ours = (newest >= 0) & (part == used - 1)
    held = position < newest
    d = tl.arange(0, width)
    real = d < head_size
    slope = 0.0
    if biased:
        slope = tl.load(slopes + head) * 1.4426950408889634
    page = tl.load(entries + position // page_size, mask=held, other=0).to(tl.int64)
    at = ((page * page_size + position % page_size) * (heads * head_size) + head * head_size)[:, None] + d[None, :]
    there = held[:, None]
    if head_size != width:
        there = there & real[None, :]
    k = tl.load(keys + at, mask=there, other=0)
    v = tl.load(values + at, mask=there, other=0)
    if early:
        tl.extra.cuda.gdc_wait()
    q = turn(query + row * query_row + head * query_head, cos, sin, row, d, real, head_size, turned)
    own_key = turn(key + row * key_row + head * key_head, cos, sin, row, d, real, head_size, turned)
    own_value = tl.load(value + row * value_row + head * value_head + d, mask=real, other=0)
    own_place = newest_place(entries, newest, ours, page_size)
    # The newest key and value, which the launch ahead leaves elsewhere, take their place among those of the cache.
    last = (position == newest)[:, None]
    k = tl.where(last, own_key[None, :], k)
    v = tl.where(last, own_value[None, :], v)
    score = tl.sum((q.to(tl.float32) * scale)[None, :] * k.to(tl.float32), 1)
    if biased:
        score += slope * (position - newest).to(tl.float32)
    score = tl.where(position < context, score, float("-inf"))
    highest = tl.maximum(tl.max(score, 0), -1.0e38)
    p = tl.exp2(score - highest)
    total = tl.sum(p, 0)
    result = tl.sum(p[:, None] * v.to(tl.float32), 0) / tl.where(total > 0, total, 1.0)
    at_head = row * heads + head
    if joined:
        at_part = at_head * parts + part
        if part < used - 1:
            hand_where(partial + at_part * head_size + d, result, real)
            hand(mass + at_part, highest + tl.log2(total))
        else:
            if (most > 1) & (used > 1):
                result = handed_over(partial, mass, at_head, used, parts, result, highest + tl.log2(total), most, head_size, width)
            tl.store(out + at_head * head_size + d, result, mask=real)
    else:
        at_part = (row * parts + part) * heads + head
        tl.store(partial + at_part * head_size + d, result, mask=real)
        tl.store(mass + at_part, highest + tl.log2(total))
    put_newest(keys, values, own_key, own_value, own_place, head, ours, heads, head_size, width)
