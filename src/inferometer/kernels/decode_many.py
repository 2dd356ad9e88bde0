"""Decode attention of many rows: a program takes several heads of a row, one after another."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.decode_newest import newest_of, newest_place, put_newest, turn
from inferometer.kernels.support import constexpr, kernel, tl


@kernel("seats", "contexts", "table_row", "key", "value", "key_row", "value_row")
def attend_many(
    query: Any, keys: Any, values: Any, table: Any, seats: Any, contexts: Any, slopes: Any, out: Any, key: Any, value: Any, cos: Any,
    sin: Any, query_row: Any, query_head: Any, table_row: Any, key_row: Any, key_head: Any, value_row: Any, value_head: Any, scale: Any,
    heads: constexpr, each: constexpr, head_size: constexpr, width: constexpr, page_size: constexpr, block: constexpr, stages: constexpr,
    biased: constexpr, turned: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """Query heads with keys of their own, `each` of them, whose newest key and value are still to go to their page.

    The keys of the next head are under way while those of this one are looked at: what a program has to find out before its first load
    (context, seat, page) it finds out once. Every key of the block has its own running maximum and sums until a head's end.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(0) * each
    row = tl.program_id(1)
    context = tl.load(contexts + row)
    entries = table + tl.load(seats + row).to(tl.int64) * table_row
    d = tl.arange(0, width)
    real_d = d < head_size
    lane = tl.arange(0, block)
    newest = context - 1
    ours = newest >= 0
    stop = newest
    steps = each * tl.maximum((stop + block - 1) // block, 1)
    page = tl.load(entries + lane // page_size, mask=lane < stop, other=0)
    if early:
        tl.extra.cuda.gdc_wait()
    wide_row = row.to(tl.int64)
    own_place = newest_place(entries, newest, ours, page_size)
    q = turn(query + wide_row * query_row + head * query_head, cos, sin, wide_row, d, real_d, head_size, turned)
    own_key, own_value = newest_of(
        key + wide_row * key_row + head * key_head, value + wide_row * value_row + head * value_head, cos, sin, wide_row, head_size, width,
        turned,
    )  # fmt: skip
    best = tl.full([block], -1.0e38, tl.float32)
    total = tl.zeros([block], tl.float32)
    sums = tl.zeros([block, width], tl.float32)
    base = 0
    for _ in tl.range(0, steps, num_stages=stages):
        position = base + lane
        seen = position < stop
        place = page.to(tl.int64) * page_size + position % page_size
        at = (place * (heads * head_size) + head * head_size)[:, None] + d[None, :]
        real = seen[:, None]
        if head_size != width:
            real = real & real_d[None, :]
        k = tl.load(keys + at, mask=real, other=0)
        v = tl.load(values + at, mask=real, other=0)
        # What the next iteration asks for comes while this one's keys do.
        ends = base + block >= stop
        base = tl.where(ends, 0, base + block)
        following = tl.minimum(tl.where(ends, head + 1, head), heads - 1)
        page = tl.load(entries + (base + lane) // page_size, mask=base + lane < stop, other=0)
        next_q = turn(query + wide_row * query_row + following * query_head, cos, sin, wide_row, d, real_d, head_size, turned)
        next_key, next_value = newest_of(
            key + wide_row * key_row + following * key_head, value + wide_row * value_row + following * value_head, cos, sin, wide_row,
            head_size, width, turned,
        )  # fmt: skip
        scaled = q.to(tl.float32) * scale
        score = tl.sum(scaled[None, :] * k.to(tl.float32), 1)
        if biased:
            slope = tl.load(slopes + head) * 1.4426950408889634
            score += slope * (position - context + 1).to(tl.float32)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(best, score)
        shrink = tl.exp2(best - higher)
        p = tl.exp2(score - higher)
        total = total * shrink + p
        sums = sums * shrink[:, None] + p[:, None] * v.to(tl.float32)
        best = higher
        if ends:
            own = tl.where(ours, tl.sum(scaled * own_key.to(tl.float32), 0), float("-inf"))
            highest = tl.maximum(tl.max(best, 0), own)
            share = tl.exp2(best - highest)
            weight = tl.exp2(own - highest)
            mass = tl.sum(total * share, 0) + weight
            result = tl.sum(sums * share[:, None], 0) + weight * own_value.to(tl.float32)
            result = result / tl.where(mass > 0, mass, 1.0)
            tl.store(out + (wide_row * heads + head) * head_size + d, result, mask=real_d)
            put_newest(keys, values, own_key, own_value, own_place, head, ours, heads, head_size, width)
            best = tl.full([block], -1.0e38, tl.float32)
            total = tl.zeros([block], tl.float32)
            sums = tl.zeros([block, width], tl.float32)
        head = tl.where(ends, head + 1, head)
        q, own_key, own_value = next_q, next_key, next_value
