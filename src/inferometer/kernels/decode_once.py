"""Decode attention to contexts so short that their keys and values are in registers before the query is: nothing is left but to add."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.decode_newest import newest_place, put_newest, turn
from inferometer.kernels.support import constexpr, kernel, tl


@kernel("seats", "contexts", "table_row", "key", "value", "key_row", "value_row")
def attend_once(
    query: Any, keys: Any, values: Any, table: Any, seats: Any, contexts: Any, slopes: Any, partial: Any, mass: Any, key: Any, value: Any,
    cos: Any, sin: Any, query_row: Any, query_head: Any, table_row: Any, key_row: Any, key_head: Any, value_row: Any, value_head: Any,
    scale: Any, head_size: constexpr, width: constexpr, page_size: constexpr, block: constexpr, biased: constexpr, turned: constexpr,
    early: constexpr,
) -> None:  # fmt: skip
    """One head and `block` keys of one row. Leaves their softmax's mean and mass (log2), which whoever reads them joins."""
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(0)
    heads = tl.num_programs(0)
    row = tl.program_id(1)
    part = tl.program_id(2)
    context = tl.load(contexts + row)
    entries = table + tl.load(seats + row).to(tl.int64) * table_row
    start = part * block
    newest = context - 1
    ours = (start <= newest) & (newest < start + block)
    d = tl.arange(0, width)
    lane = tl.arange(0, block)
    position = start + lane
    held = position < newest
    page = tl.load(entries + position // page_size, mask=held, other=0)
    place = page.to(tl.int64) * page_size + position % page_size
    at = (place * (heads * head_size) + head * head_size)[:, None] + d[None, :]
    real = held[:, None]
    if head_size != width:
        real = real & (d < head_size)[None, :]
    k = tl.load(keys + at, mask=real, other=0)
    v = tl.load(values + at, mask=real, other=0)
    if early:
        tl.extra.cuda.gdc_wait()
    wide_row = row.to(tl.int64)
    q = turn(query + wide_row * query_row + head * query_head, cos, sin, wide_row, d, d < head_size, head_size, turned)
    own_key = turn(key + wide_row * key_row + head * key_head, cos, sin, wide_row, d, d < head_size, head_size, turned)
    own_value = tl.load(value + wide_row * value_row + head * value_head + d, mask=d < head_size, other=0)
    own_place = newest_place(entries, newest, ours, page_size)
    last = (position == newest)[:, None]
    k = tl.where(last, own_key[None, :], k)
    v = tl.where(last, own_value[None, :], v)
    score = tl.sum((q.to(tl.float32) * scale)[None, :] * k.to(tl.float32), 1)
    if biased:
        slope = tl.load(slopes + head) * 1.4426950408889634
        score += slope * (position - context + 1).to(tl.float32)
    score = tl.where(position < context, score, float("-inf"))
    highest = tl.maximum(tl.max(score, 0), -1.0e38)
    p = tl.exp2(score - highest)
    total = tl.sum(p, 0)
    result = tl.sum(p[:, None] * v.to(tl.float32), 0) / tl.where(total > 0, total, 1.0)
    at_part = (wide_row * tl.num_programs(2) + part) * heads + head
    tl.store(partial + at_part * head_size + d, result, mask=d < head_size)
    tl.store(mass + at_part, highest + tl.log2(total))
    put_newest(keys, values, own_key, own_value, own_place, head, ours, heads, head_size, width)


@kernel()
def joined_row(partial: Any, mass: Any, parts: constexpr, most: constexpr, heads: constexpr, head_size: constexpr, dtype: constexpr) -> Any:
    """A row of all heads (heads * head_size,) from what `attend_once` has left of it. Sizes are powers of two, but for parts."""
    h = tl.arange(0, heads)[:, None]
    d = tl.arange(0, head_size)[None, :]
    best = tl.full([heads, 1], -1.0e38, tl.float32)
    total = tl.zeros([heads, 1], tl.float32)
    row = tl.zeros([heads, head_size], tl.float32)
    for p in tl.static_range(parts):
        own = tl.load(mass + p * heads + h)
        mean = tl.load(partial + (p * heads + h) * head_size + d).to(tl.float32)
        higher = tl.maximum(best, own)
        shrink = tl.exp2(best - higher)
        share = tl.exp2(own - higher)
        total = total * shrink + share
        row = row * shrink + share * mean
        best = higher
    return tl.reshape(row / tl.where(total > 0, total, 1.0), [heads * head_size]).to(dtype)
