"""The kernel of decode attention for heads with keys of their own: parts of a context, which the last of them to end joins."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.arrivals import last_to_arrive
from inferometer.kernels.decode_newest import newest_of, newest_place, put_newest, turn
from inferometer.kernels.decode_parts import combined
from inferometer.kernels.decode_span import come_ahead, span_of
from inferometer.kernels.kv_scaled import scales_of, widened
from inferometer.kernels.support import constexpr, kernel, tl


@kernel("seats", "contexts", "table_row", "key", "value", "key_row", "value_row")
def attend_alone(
    query: Any, keys: Any, values: Any, key_scales: Any, value_scales: Any, table: Any, seats: Any, contexts: Any, slopes: Any, out: Any,
    partial: Any, weight: Any, arrived: Any, key: Any, value: Any, cos: Any, sin: Any, query_row: Any, query_head: Any, table_row: Any,
    key_row: Any, key_head: Any,
    value_row: Any, value_head: Any, scale: Any, heads: constexpr, kv_heads: constexpr, head_size: constexpr, width: constexpr,
    members: constexpr, page_size: constexpr, block: constexpr, stages: constexpr, least: constexpr, whole: constexpr, biased: constexpr,
    fresh: constexpr, turned: constexpr, ahead: constexpr, most: constexpr, wide: constexpr, kind: constexpr, assembled: constexpr,
    early: constexpr,
) -> None:  # fmt: skip
    """One query head with keys of its own. Every key of the block has its own running maximum and sums until the end, so that
    nothing in the loop waits for another warp.

    ahead: the first block is in registers before the launch ahead has ended, and what comes behind it in the L2 cache.
    """
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(0)
    row = tl.program_id(1)
    part = tl.program_id(2)
    context = tl.load(contexts + row)
    entries = table + tl.load(seats + row).to(tl.int64) * table_row
    parts = tl.num_programs(2)
    start, stop, used = 0, context, 1
    if not whole:
        # Known when compiled: without it neither a division nor a branch stands before the loads.
        span, used = span_of(context, parts, block, least)
        if part >= used:
            return
        start = part * span
        stop = tl.minimum(start + span, context)
    d = tl.arange(0, width)
    lane = tl.arange(0, block)
    newest = context - 1
    ours = fresh & (start <= newest) & (newest < stop)
    if fresh:
        # The newest key and value come from where the launch ahead leaves them.
        stop = tl.minimum(stop, newest)
    position = start + lane
    page = tl.load(entries + position // page_size, mask=position < stop, other=0)
    if ahead:
        place = page.to(tl.int64) * page_size + position % page_size
        at = (place * (kv_heads * head_size) + head * head_size)[:, None] + d[None, :]
        real = (position < stop)[:, None]
        if head_size != width:
            real = real & (d < head_size)[None, :]
        k = tl.load(keys + at, mask=real, other=0)
        v = tl.load(values + at, mask=real, other=0)
        key_scale = scales_of(key_scales, page, head, position < stop, kv_heads, kind)
        value_scale = scales_of(value_scales, page, head, position < stop, kv_heads, kind)
        page = tl.load(entries + (position + block) // page_size, mask=position + block < stop, other=0)
    if early:
        if ahead:
            come_ahead(keys, values, entries, start + block, stop, head, kv_heads, head_size, page_size, block, stages)
        tl.extra.cuda.gdc_wait()
    at_query = query + row.to(tl.int64) * query_row + head * query_head
    q = turn(at_query, cos, sin, row.to(tl.int64), d, d < head_size, head_size, turned)
    if fresh & ahead:
        own_key, own_value = newest_of(
            key + row.to(tl.int64) * key_row + head * key_head, value + row.to(tl.int64) * value_row + head * value_head, cos, sin,
            row.to(tl.int64), head_size, width, turned,
        )  # fmt: skip
        own_place = newest_place(entries, newest, ours, page_size)
    q = q.to(tl.float32) * scale
    if biased:
        slope = tl.load(slopes + head) * 1.4426950408889634
    best = tl.full([block], -1.0e38, tl.float32)
    total = tl.zeros([block], tl.float32)
    sums = tl.zeros([block, width], tl.float32)
    first = start
    if ahead:
        score = tl.sum(q[None, :] * widened(k, kind, assembled), 1) * key_scale
        if biased:
            score += slope * (position - context + 1).to(tl.float32)
        best = tl.where(position < stop, score, -1.0e38)
        total = tl.where(position < stop, 1.0, 0.0)
        sums = widened(v, kind, assembled)
        if kind is not None:
            sums = sums * value_scale[:, None]
        first = start + block
    for base in tl.range(first, stop, block, num_stages=stages):
        position = base + lane
        seen = position < stop
        place = page.to(tl.int64) * page_size + position % page_size
        key_scale = scales_of(key_scales, page, head, seen, kv_heads, kind)
        value_scale = scales_of(value_scales, page, head, seen, kv_heads, kind)
        # The next iteration's pages come while this one's keys do.
        page = tl.load(entries + (position + block) // page_size, mask=position + block < stop, other=0)
        at = (place * (kv_heads * head_size) + head * head_size)[:, None] + d[None, :]
        real = seen[:, None]
        if head_size != width:
            real = real & (d < head_size)[None, :]
        k = tl.load(keys + at, mask=real, other=0)
        v = tl.load(values + at, mask=real, other=0)
        score = tl.sum(q[None, :] * widened(k, kind, assembled), 1) * key_scale
        if biased:
            score += slope * (position - context + 1).to(tl.float32)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(best, score)
        shrink = tl.exp2(best - higher)
        p = tl.exp2(score - higher)
        total = total * shrink + p
        sums = sums * shrink[:, None] + (p * value_scale)[:, None] * widened(v, kind, assembled)
        best = higher

    highest = tl.max(best, 0)
    share = tl.exp2(best - highest)
    mass = tl.sum(total * share, 0)
    result = tl.sum(sums * share[:, None], 0)
    if fresh & (not ahead):
        own_key, own_value = newest_of(
            key + row.to(tl.int64) * key_row + head * key_head, value + row.to(tl.int64) * value_row + head * value_head, cos, sin,
            row.to(tl.int64), head_size, width, turned,
        )  # fmt: skip
        own_place = newest_place(entries, newest, ours, page_size)
    if fresh:
        score = tl.where(ours, tl.sum(q * own_key.to(tl.float32), 0), float("-inf"))
        higher = tl.maximum(highest, score)
        shrink = tl.exp2(highest - higher)
        p = tl.exp2(score - higher)
        mass = mass * shrink + p
        result = result * shrink + p * own_value.to(tl.float32)
        highest = higher
    result = result / tl.where(mass > 0, mass, 1.0)
    at_head = row.to(tl.int64) * heads + head
    if used == 1:
        tl.store(out + at_head * head_size + d, result, mask=d < head_size)
    if fresh:
        # Not before: no load of keys would be sent out until they have come.
        put_newest(keys, values, own_key, own_value, own_place, head, ours, kv_heads, head_size, width)
    if not whole:  # noqa: SIM102 (known when compiled, the other when run)
        if used > 1:
            at_part = at_head * parts + part
            tl.store(partial + at_part * head_size + d, result, mask=d < head_size)
            tl.store(weight + at_part, highest + tl.log2(mass))
            if last_to_arrive(arrived + at_head, used):
                result = combined(partial, weight, at_head, used, parts, most, head_size, width)
                tl.store(out + at_head * head_size + d, result, mask=d < head_size)
