"""Causal attention of many query tokens a sequence to the keys and values in its pages, theirs included."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.kv_scaled import PageScales, bytes_of, kind_of, scales_of, wide_rows, widened
from inferometer.kernels.ragged_blocks import block_of
from inferometer.kernels.support import FP8_CONVERSION, Table, Tiles, capability, constexpr, kernel, look_up, power_of_two, tl, usable, wide

LOG2_E = math.log2(math.e)
_AMPERE = (
    (128, Tiles(queries=128, block=64, warps=4, stages=3)),
    (256, Tiles(queries=128, block=64, warps=8, stages=2)),
    (512, Tiles(queries=64, block=32, warps=8, stages=2)),
)
# The best of five each on an H200 (benchmarks/attention_kernels.py --sweep).
_HOPPER = (
    (128, Tiles(queries=64, block=64, warps=4, stages=2)),
    (256, Tiles(queries=128, block=32, warps=8, stages=3)),
    (512, Tiles(queries=128, block=32, warps=8, stages=2)),
)
# Matrix products without tensor cores, which Triton has given up for these GPUs, take many registers.
_TURING = (
    (128, Tiles(queries=32, block=16, warps=4, stages=1)),
    (512, Tiles(queries=16, block=16, warps=8, stages=1)),
)
TABLE: Table = (((12, 0), _AMPERE), ((9, 0), _HOPPER), ((8, 0), _AMPERE), ((7, 5), _TURING))
"""For 16-bit elements. GPUs of capability 8.6, 8.9 and 12 have 99 KiB of shared memory a block."""
FLOAT32: Table = (
    (
        (7, 5),
        (
            (256, Tiles(queries=32, block=32, warps=4, stages=1)),
            (512, Tiles(queries=16, block=16, warps=4, stages=1)),
            (1024, Tiles(queries=16, block=16, warps=8, stages=1)),
        ),
    ),
)
"""For 32-bit elements, whose products take no tensor cores: where results must be exact, not fast."""


def ragged_prefill(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    seats: Tensor,
    starts: Tensor,
    contexts: Tensor,
    *,
    page_size: int,
    scale: float,
    longest_query: int,
    slopes: Tensor | None = None,
    scales: PageScales | None = None,
) -> Tensor:
    """Softmax(scale * query . keys + bias) . values for every query token, over its own position and those before it.

    query: (tokens, heads, head_size), the last dimension contiguous, the rows' tokens one after another: row r has the tokens
    starts[r] to starts[r + 1]. keys, values, table: as for paged_decode; they hold the query tokens' own keys and values already.
    seats: int32 (rows,). starts: int32 (rows + 1,). contexts: int32 (rows,), with the query tokens: query i of q sits at position
    context - q + i. scale is positive. A row of context 0 is padding, as are tokens from starts[rows] on: their results are zeros.
    longest_query: no row has more query tokens. slopes: float32 (heads,), adds slope * (key position - query position).
    scales: of keys and values in 8 bits, int8 or float8_e4m3fn.
    Returns (tokens, heads, head_size), contiguous.

    Moves 2 * sum(contexts) * kv_heads * head_size elements of keys and values once, more often what the L2 cache does not hold
    between the blocks of a row's queries, and 2 * tokens * heads * head_size of queries and results.
    """
    if usable(query.device):
        return ragged_prefill_triton(
            query,
            keys,
            values,
            table,
            seats,
            starts,
            contexts,
            page_size=page_size,
            scale=scale,
            longest_query=longest_query,
            slopes=slopes,
            scales=scales,
        )
    return ragged_prefill_torch(
        query, keys, values, table, seats, starts, contexts, page_size=page_size, scale=scale, slopes=slopes, scales=scales
    )


def ragged_prefill_torch(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    seats: Tensor,
    starts: Tensor,
    contexts: Tensor,
    *,
    page_size: int,
    scale: float,
    slopes: Tensor | None = None,
    scales: PageScales | None = None,
) -> Tensor:
    """The reference: one row after another, its keys and values copied side by side."""
    kv_heads = keys.shape[1]
    out = query.new_zeros(query.shape)
    bounds = starts.tolist()
    for start, stop, context, seat in zip(bounds, bounds[1:], contexts.tolist(), seats.tolist(), strict=False):
        if context == 0 or start == stop:
            continue
        position = torch.arange(context, device=query.device)
        places = table[seat].index_select(0, position // page_size).long() * page_size + position % page_size
        both = ((keys, None), (values, None)) if scales is None else ((keys, scales.keys), (values, scales.values))
        k, v = (wide_rows(held, scale_of, places, page_size, query.dtype).transpose(0, 1) for held, scale_of in both)
        if query.shape[1] > kv_heads:
            k, v = (t.repeat_interleave(query.shape[1] // kv_heads, 0) for t in (k, v))
        q = query[start:stop].transpose(0, 1)
        fresh = context == stop - start
        mask = None
        if slopes is not None or not fresh:
            distance = position - position[context - (stop - start) :, None]
            mask = distance <= 0
            if slopes is not None:
                mask = (slopes[:, None, None] * distance).masked_fill(~mask, -math.inf).to(query.dtype)[None]
        attended = functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, is_causal=mask is None, scale=scale)
        out[start:stop] = attended[0].transpose(0, 1)
    return out


def tiles(dtype: torch.dtype, head_size: int, longest_query: int, device: torch.device) -> Tiles:
    """How to launch: as the table says, with fewer query tokens a program where no row has as many.

    Every choice is compiled for itself, which takes seconds, so there are only two others.
    """
    found = look_up(FLOAT32 if dtype == torch.float32 else TABLE, capability(device), head_size * dtype.itemsize)
    for queries in (16, 64):
        if longest_query <= queries < found.queries:
            return replace(found, queries=queries, warps=4)
    return found


def ragged_prefill_triton(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    seats: Tensor,
    starts: Tensor,
    contexts: Tensor,
    *,
    page_size: int,
    scale: float,
    longest_query: int,
    slopes: Tensor | None = None,
    scales: PageScales | None = None,
    tiling: Tiles | None = None,
) -> Tensor:
    """The kernel. tiling: instead of what `tiles` chooses."""
    (tokens, heads, head_size), kv_heads = query.shape, keys.shape[1]
    out = torch.empty((tokens, heads, head_size), dtype=query.dtype, device=query.device)
    if tokens == 0:
        return out
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert query.stride(2) == table.stride(1) == 1
    kind = kind_of(keys)
    assert (kind is None) == (scales is None)
    rows = contexts.shape[0]
    chosen = tiling or tiles(query.dtype, head_size, longest_query, query.device)
    # As `block_of` numbers them. The tokens behind the last row are a row of their own, for zeros.
    blocks = tokens // chosen.queries + rows + 1
    _attend.launch(
        (heads, blocks), query, bytes_of(keys), bytes_of(values), query if scales is None else scales.keys,
        query if scales is None else scales.values, table, seats, starts, contexts, query if slopes is None else slopes, out,
        query.stride(0), query.stride(1), table.stride(0), scale * LOG2_E, tokens, rows, heads=heads, kv_heads=kv_heads,
        head_size=head_size, width=power_of_two(max(16, head_size)), page_size=page_size, queries=chosen.queries, block=chosen.block,
        stages=chosen.stages, biased=slopes is not None, wide=wide(query.dtype, query.device), kind=kind,
        assembled=capability(query.device) >= FP8_CONVERSION, num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    return out


@kernel("seats", "starts", "contexts", "table_row", "tokens", "rows")
def _attend(
    query: Any, keys: Any, values: Any, key_scales: Any, value_scales: Any, table: Any, seats: Any, starts: Any, contexts: Any,
    slopes: Any, out: Any, query_token: Any, query_head: Any, table_row: Any, scale: Any, tokens: Any, rows: Any, heads: constexpr,
    kv_heads: constexpr, head_size: constexpr, width: constexpr, page_size: constexpr, queries: constexpr, block: constexpr,
    stages: constexpr, biased: constexpr, wide: constexpr, kind: constexpr, assembled: constexpr,
) -> None:  # fmt: skip
    """One head of a block of a row's query tokens."""
    head = tl.program_id(0)
    # The last blocks of a row see the most keys: they come first, and short ones fill the end.
    number = tl.num_programs(1) - 1 - tl.program_id(1)
    row, begin, stop = block_of(starts, number, rows, tokens, queries)
    if begin >= stop:
        return
    context = tl.load(contexts + row, mask=row < rows, other=0)

    d = tl.arange(0, width)
    i = tl.arange(0, queries)
    token = begin + i
    ours = (token < stop)[:, None] & (d < head_size)[None, :]
    q = tl.load(query + token.to(tl.int64)[:, None] * query_token + head * query_head + d[None, :], mask=ours, other=0)
    if wide:
        q = q.to(tl.float32)
    kv_head = head // (heads // kv_heads)
    entries = table + tl.load(seats + row, mask=row < rows, other=0).to(tl.int64) * table_row
    first = context - (stop - begin)
    position = first + i
    last = first + queries - 1
    slope = 0.0
    if biased:
        slope = tl.load(slopes + head) * 1.4426950408889634
    best = tl.full([queries], -1.0e38, tl.float32)
    total = tl.zeros([queries], tl.float32)
    sums = tl.zeros([queries, width], tl.float32)
    # Keys that all queries of the block see need no mask. A padding row has no keys: its context is 0.
    end = tl.where(context > 0, tl.minimum(first + queries, context), 0)
    clear = tl.where(context > 0, (first + 1) // block * block, 0)
    best, total, sums = _over_keys(
        q, best, total, sums, 0, clear, keys, values, key_scales, value_scales, entries, kv_head, position, last,
        slope, scale, kv_heads, head_size, width, page_size, queries, block, stages, biased, wide, False, kind, assembled,
    )  # fmt: skip
    best, total, sums = _over_keys(
        q, best, total, sums, clear, end, keys, values, key_scales, value_scales, entries, kv_head, position, last,
        slope, scale, kv_heads, head_size, width, page_size, queries, block, stages, biased, wide, True, kind, assembled,
    )  # fmt: skip
    result = sums / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + (token.to(tl.int64)[:, None] * heads + head) * head_size + d[None, :], result, mask=ours)


@kernel()
def _over_keys(
    q: Any, best: Any, total: Any, sums: Any, start: Any, stop: Any, keys: Any, values: Any, key_scales: Any, value_scales: Any,
    entries: Any, kv_head: Any, position: Any, last: Any, slope: Any, scale: Any, kv_heads: constexpr, head_size: constexpr,
    width: constexpr, page_size: constexpr, queries: constexpr, block: constexpr, stages: constexpr, biased: constexpr, wide: constexpr,
    masked: constexpr, kind: constexpr, assembled: constexpr,
) -> Any:  # fmt: skip
    """The running maximum, mass and sums of q's softmax after the keys from start to stop. masked: some are not seen by all."""
    d = tl.arange(0, width)
    lane = tl.arange(0, block)
    position_of_key = start + lane
    page = tl.load(entries + position_of_key // page_size, mask=position_of_key < stop, other=0)
    for base in tl.range(start, stop, block, num_stages=stages):
        position_of_key = base + lane
        there = position_of_key < stop
        place = page.to(tl.int64) * page_size + position_of_key % page_size
        key_scale = scales_of(key_scales, page, kv_head, there, kv_heads, kind)
        value_scale = scales_of(value_scales, page, kv_head, there, kv_heads, kind)
        # The next iteration's pages come while this one's keys do.
        page = tl.load(entries + (position_of_key + block) // page_size, mask=position_of_key + block < stop, other=0)
        at = (place * (kv_heads * head_size) + kv_head * head_size)[:, None] + d[None, :]
        if masked:
            real = there[:, None] & (d < head_size)[None, :]
            k = tl.load(keys + at, mask=real, other=0)
            v = tl.load(values + at, mask=real, other=0)
        elif head_size != width:
            k = tl.load(keys + at, mask=(d < head_size)[None, :], other=0)
            v = tl.load(values + at, mask=(d < head_size)[None, :], other=0)
        else:
            k = tl.load(keys + at)
            v = tl.load(values + at)
        if kind is not None:
            # Of 8 bits nothing is lost in 16.
            k, v = widened(k, kind, assembled).to(q.dtype), widened(v, kind, assembled).to(q.dtype)
        elif wide:
            k, v = k.to(tl.float32), v.to(tl.float32)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        if kind is not None:
            score = score * key_scale[None, :]
        if biased:
            # One addition a key serves every query: what the queries' own positions would add cancels in the softmax. Distances to
            # the block's last query are small, and so exact, where the weight is.
            score = score * scale + (slope * (position_of_key - last).to(tl.float32))[None, :]
        if masked:
            score = tl.where(there[None, :] & (position_of_key[None, :] <= position[:, None]), score, float("-inf"))
        if biased:
            higher = tl.maximum(best, tl.max(score, 1))
            p = tl.exp2(score - higher[:, None])
        else:
            # Scaled behind the maximum: scale and difference are then one instruction.
            higher = tl.maximum(best, tl.max(score, 1) * scale)
            p = tl.exp2(score * scale - higher[:, None])
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(p, 1)
        if kind is not None:
            p = p * value_scale[None, :]
        sums = tl.dot(p.to(v.dtype), v, sums * shrink[:, None], input_precision="ieee")
        best = higher
    return best, total, sums
