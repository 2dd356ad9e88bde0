"""The kernel of decode attention for heads that share keys: parts of a context, which the last of them to end joins."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.arrivals import last_to_arrive
from inferometer.kernels.decode_newest import newest_of, newest_place, put_newest, turn
from inferometer.kernels.decode_parts import combined_group
from inferometer.kernels.decode_span import come_ahead, span_of
from inferometer.kernels.kv_scaled import scales_of, widened
from inferometer.kernels.support import constexpr, kernel, tl


@kernel("seats", "contexts", "table_row", "key", "value", "key_row", "value_row")
def attend_group(
    query: Any, keys: Any, values: Any, key_scales: Any, value_scales: Any, table: Any, seats: Any, contexts: Any, slopes: Any, out: Any,
    partial: Any, weight: Any, arrived: Any, key: Any, value: Any, cos: Any, sin: Any, query_row: Any, query_head: Any, table_row: Any,
    key_row: Any, key_head: Any,
    value_row: Any, value_head: Any, scale: Any, heads: constexpr, kv_heads: constexpr, head_size: constexpr, width: constexpr,
    members: constexpr, page_size: constexpr, block: constexpr, stages: constexpr, least: constexpr, whole: constexpr, biased: constexpr,
    fresh: constexpr, turned: constexpr, ahead: constexpr, most: constexpr, wide: constexpr, kind: constexpr, assembled: constexpr,
    early: constexpr,
) -> None:  # fmt: skip
    """Query heads that share a key head, `members` of them, padded to the rows of a matrix product."""
    group: tl.constexpr = heads // kv_heads
    shares: tl.constexpr = (group + members - 1) // members
    # A power of two that covers the heads which a program has.
    sharing: tl.constexpr = (
        members
        if group >= members
        else (2 if group <= 2 else (4 if group <= 4 else (8 if group <= 8 else (16 if group <= 16 else members))))
    )
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    kv_head = tl.program_id(0) // shares
    member = tl.program_id(0) % shares * members + tl.arange(0, members)
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
    head = kv_head * group + member
    real_head = member < group
    ours = real_head[:, None] & (d < head_size)[None, :]
    newest = context - 1
    own = fresh & (start <= newest) & (newest < stop)
    if fresh:
        stop = tl.minimum(stop, newest)
    position = start + lane
    page = tl.load(entries + position // page_size, mask=position < stop, other=0)
    if early:
        if ahead:
            come_ahead(keys, values, entries, start, stop, kv_head, kv_heads, head_size, page_size, block, stages)
        tl.extra.cuda.gdc_wait()
    at_query = query + row.to(tl.int64) * query_row + head[:, None] * query_head
    q = turn(at_query, cos, sin, row.to(tl.int64), d[None, :], ours, head_size, turned)
    if fresh:
        own_key, own_value = newest_of(
            key + row.to(tl.int64) * key_row + kv_head * key_head, value + row.to(tl.int64) * value_row + kv_head * value_head, cos, sin,
            row.to(tl.int64), head_size, width, turned,
        )  # fmt: skip
        own_place = newest_place(entries, newest, own, page_size)
        own_score = tl.sum(q.to(tl.float32) * own_key.to(tl.float32)[None, :], 1) * scale
    if wide:
        q = q.to(tl.float32)
    if biased:
        slope = tl.load(slopes + head, mask=real_head, other=0) * 1.4426950408889634
    best = tl.full([members], -1.0e38, tl.float32)
    total = tl.zeros([members], tl.float32)
    sums = tl.zeros([members, width], tl.float32)
    for base in tl.range(start, stop, block, num_stages=stages):
        position = base + lane
        seen = position < stop
        place = page.to(tl.int64) * page_size + position % page_size
        key_scale = scales_of(key_scales, page, kv_head, seen, kv_heads, kind)
        value_scale = scales_of(value_scales, page, kv_head, seen, kv_heads, kind)
        # The next iteration's pages come while this one's keys do.
        page = tl.load(entries + (position + block) // page_size, mask=position + block < stop, other=0)
        at = (place * (kv_heads * head_size) + kv_head * head_size)[:, None] + d[None, :]
        real = seen[:, None]
        if head_size != width:
            real = real & (d < head_size)[None, :]
        k = tl.load(keys + at, mask=real, other=0)
        v = tl.load(values + at, mask=real, other=0)
        if kind is not None:
            # Of 8 bits nothing is lost in 16.
            k, v = widened(k, kind, assembled).to(q.dtype), widened(v, kind, assembled).to(q.dtype)
        elif wide:
            k, v = k.to(tl.float32), v.to(tl.float32)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if kind is not None:
            score = score * key_scale[None, :]
        if biased:
            score += slope[:, None] * (position - context + 1).to(tl.float32)[None, :]
        score = tl.where(seen[None, :], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        shrink = tl.exp2(best - higher)
        p = tl.exp2(score - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        if kind is not None:
            p = p * value_scale[None, :]
        sums = tl.dot(p.to(v.dtype), v, sums * shrink[:, None], input_precision="ieee")
        best = higher

    if fresh:
        own_score = tl.where(own, own_score, float("-inf"))
        higher = tl.maximum(best, own_score)
        shrink = tl.exp2(best - higher)
        p = tl.exp2(own_score - higher)
        total = total * shrink + p
        sums = sums * shrink[:, None] + p[:, None] * own_value.to(tl.float32)[None, :]
        best = higher
    result = sums / tl.where(total > 0, total, 1.0)[:, None]
    at_head = row.to(tl.int64) * heads + head
    if used == 1:
        tl.store(out + at_head[:, None] * head_size + d[None, :], result, mask=ours)
    if fresh:
        # Programs that share the key head all write the same.
        put_newest(keys, values, own_key, own_value, own_place, kv_head, own, kv_heads, head_size, width)
    if not whole:  # noqa: SIM102 (known when compiled, the other when run)
        if used > 1:
            at_part = at_head * parts + part
            tl.store(partial + at_part[:, None] * head_size + d[None, :], result, mask=ours)
            tl.store(weight + at_part, best + tl.log2(total), mask=real_head)
            if last_to_arrive(arrived + row * tl.num_programs(0) + tl.program_id(0), used):
                first = tl.program_id(0) % shares * members
                combined_group(
                    partial, weight, row.to(tl.int64) * heads + kv_head * group + first, tl.minimum(group - first, members), used, parts,
                    out, most, sharing, head_size, width,
                )  # fmt: skip
