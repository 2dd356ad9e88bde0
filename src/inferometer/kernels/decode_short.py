"""Attention of one query token to contexts so short that their keys and values are in registers before the query is there."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.decode_launch import RESIDENT
from inferometer.kernels.decode_newest import newest_place, put_newest, turn
from inferometer.kernels.head_parts import HeadParts
from inferometer.kernels.paged_decode import Fresh
from inferometer.kernels.support import constexpr, early, kernel, power_of_two, processors, tl

MOST_PARTS = 16
"""Of a context."""
MOST_PROGRAMS = 3
"""For each processor. One row of 1,500 keys of opt-1.3b took 0.93 ms in parts, 0.95 where attention joins them itself; of 1,900, which
makes four programs a processor, 1.01 and 0.96."""
MOST_JOINED = 1 << 15
"""Numbers of all parts together: every program of the launch that joins them reads them all. Of 61 kB of 16 heads, 900 keys, a step of
doc004-1.3b alone took 0.96 ms, 0.97 where attention joins them itself; of 90 kB of 32 heads, beside int8 weights, 2.48 and 2.24."""
HELD = 8192
"""Numbers of keys that a program holds, and as many of values: half of the registers that are kept for it."""
MOST_KEYS = 128
WARPS = 4


def keys_of(head_size: int) -> int:
    """Keys of a part, for heads of a size that is a power of two."""
    return min(MOST_KEYS, HELD // head_size)


def serves(rows: int, heads: int, kv_heads: int, head_size: int, longest: int, device: torch.device) -> bool:
    """Whether rows of so many heads, no context of which is above `longest`, are attended to in parts here: heads with keys of their own
    whose sizes are powers of two, and no more programs than begin while the launch ahead still runs."""
    if heads != kv_heads or power_of_two(heads) != heads or power_of_two(head_size) != head_size or not 16 <= head_size <= 128:
        return False
    parts = -(-longest // keys_of(head_size))
    joined = rows * heads * parts * head_size
    return 0 < parts <= MOST_PARTS and joined <= MOST_JOINED and rows * heads * parts <= MOST_PROGRAMS * processors(device)


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
    """What `paged_decode` returns, before the parts of a context are joined. Only where `serves`; arguments as there, 16-bit types.

    Moves what `paged_decode` does; of results parts * rows * heads * head_size elements, and as many again by whoever joins them.
    """
    rows, heads, head_size = query.shape
    held = keys_of(head_size)
    parts = -(-longest // held)
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert query.stride(2) == table.stride(1) == fresh.key.stride(2) == fresh.value.stride(2) == 1
    partial = torch.empty((rows, parts, heads, head_size), dtype=query.dtype, device=query.device)
    mass = torch.empty((rows, parts, heads), dtype=torch.float32, device=query.device)
    cos, sin = (query, query) if fresh.rotation is None else fresh.rotation
    assert fresh.rotation is None or (cos.is_contiguous() and sin.is_contiguous())
    attend_short.launch(
        (heads, rows, parts), query, keys, values, table, seats, contexts, query if slopes is None else slopes, partial, mass,
        fresh.key, fresh.value, cos, sin, query.stride(0), query.stride(1), table.stride(0), fresh.key.stride(0), fresh.key.stride(1),
        fresh.value.stride(0), fresh.value.stride(1), scale * math.log2(math.e), head_size=head_size, page_size=page_size, block=held,
        biased=slopes is not None, turned=fresh.rotation is not None, num_warps=WARPS, maxnreg=65536 // RESIDENT // (32 * WARPS),
        **early(query.device),
    )  # fmt: skip
    return HeadParts(partial, mass, contexts, held)


@kernel("seats", "contexts", "table_row", "key", "value", "key_row", "value_row")
def attend_short(
    query: Any, keys: Any, values: Any, table: Any, seats: Any, contexts: Any, slopes: Any, partial: Any, mass: Any, key: Any, value: Any,
    cos: Any, sin: Any, query_row: Any, query_head: Any, table_row: Any, key_row: Any, key_head: Any, value_row: Any, value_head: Any,
    scale: Any, head_size: constexpr, page_size: constexpr, block: constexpr, biased: constexpr, turned: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One head and `block` keys of one row: all that is in the cache is on its way before the launch ahead has ended."""
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(0)
    heads = tl.num_programs(0)
    row = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    context = tl.load(contexts + row)
    entries = table + tl.load(seats + row).to(tl.int64) * table_row
    if part * block >= context:
        return
    newest = context - 1
    position = part * block + tl.arange(0, block)
    ours = newest < (part + 1) * block
    held = position < newest
    d = tl.arange(0, head_size)
    real = d < head_size
    slope = 0.0
    if biased:
        slope = tl.load(slopes + head) * 1.4426950408889634
    page = tl.load(entries + position // page_size, mask=held, other=0).to(tl.int64)
    at = ((page * page_size + position % page_size) * (heads * head_size) + head * head_size)[:, None] + d[None, :]
    k = tl.load(keys + at, mask=held[:, None], other=0)
    v = tl.load(values + at, mask=held[:, None], other=0)
    if early:
        tl.extra.cuda.gdc_wait()
    q = turn(query + row * query_row + head * query_head, cos, sin, row, d, real, head_size, turned)
    own_key = turn(key + row * key_row + head * key_head, cos, sin, row, d, real, head_size, turned)
    own_value = tl.load(value + row * value_row + head * value_head + d)
    own_place = newest_place(entries, newest, ours, page_size)
    # The newest key and value, which the launch ahead leaves elsewhere, take their place among those of the cache.
    last = (position == newest)[:, None]
    k = tl.where(last, own_key[None, :], k)
    v = tl.where(last, own_value[None, :], v)
    score = tl.sum((q.to(tl.float32) * scale)[None, :] * k.to(tl.float32), 1)
    if biased:
        score += slope * (position - newest).to(tl.float32)
    score = tl.where(position < context, score, float("-inf"))
    highest = tl.max(score, 0)
    p = tl.exp2(score - highest)
    total = tl.sum(p, 0)
    result = tl.sum(p[:, None] * v.to(tl.float32), 0) / total
    at_part = (row * tl.num_programs(2) + part) * heads + head
    tl.store(partial + at_part * head_size + d, result)
    tl.store(mass + at_part, highest + tl.log2(total))
    put_newest(keys, values, own_key, own_value, own_place, head, ours, heads, head_size, head_size)
