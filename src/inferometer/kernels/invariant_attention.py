"""Causal attention over pages whose every query token has the same bits, whether it comes alone, in a chunk or with its whole prompt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.ragged_blocks import block_of
from inferometer.kernels.ragged_prefill import LOG2_E, ragged_prefill_torch
from inferometer.kernels.support import Table, Tiles, capability, constexpr, kernel, look_up, power_of_two, tl, usable, wide

# Queries are padded to the 64 rows of Hopper's matrix instructions: those are so fast that the padding of a single token costs less
# than its keys take to arrive.
_HOPPER = ((256, Tiles(queries=64, block=64, warps=4, stages=3)), (512, Tiles(queries=64, block=32, warps=4, stages=3)))
# GPUs of capability 8.6, 8.9 and 12 have 99 KiB of shared memory a block.
_AMPERE = ((256, Tiles(queries=64, block=64, warps=4, stages=2)), (512, Tiles(queries=64, block=32, warps=4, stages=1)))
# Matrix products without tensor cores take many registers.
_TURING = ((128, Tiles(queries=16, block=16, warps=4, stages=1)), (512, Tiles(queries=16, block=16, warps=8, stages=1)))
TABLE: Table = (((12, 0), _AMPERE), ((9, 0), _HOPPER), ((8, 0), _AMPERE), ((7, 5), _TURING))
"""For 16-bit elements, by device and head: nothing here may depend on how many queries or keys there are."""
FLOAT32: Table = (
    (
        (7, 5),
        (
            (256, Tiles(queries=16, block=32, warps=4, stages=1)),
            (512, Tiles(queries=16, block=16, warps=4, stages=1)),
            (1024, Tiles(queries=16, block=16, warps=8, stages=1)),
        ),
    ),
)
"""For 32-bit elements, whose products take no tensor cores."""


def invariant_attention(
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
) -> Tensor:
    """As `ragged_prefill`, for rows of any number of query tokens, one included, in one launch.

    A query meets the keys in blocks that begin at fixed positions of its sequence, in their order, and its row of the tile is computed
    as every other row of it: so its bits do not depend on where the tile begins, nor on the rows' lengths.

    Moves what `ragged_prefill` does.
    """
    if usable(query.device):
        return invariant_attention_triton(
            query, keys, values, table, seats, starts, contexts, page_size=page_size, scale=scale, slopes=slopes
        )
    return ragged_prefill_torch(query, keys, values, table, seats, starts, contexts, page_size=page_size, scale=scale, slopes=slopes)


def invariant_attention_triton(
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
    tiling: Tiles | None = None,
) -> Tensor:
    """The kernel. tiling: instead of what the tables say."""
    (tokens, heads, head_size), kv_heads = query.shape, keys.shape[1]
    out = torch.empty((tokens, heads, head_size), dtype=query.dtype, device=query.device)
    if tokens == 0:
        return out
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert query.stride(2) == table.stride(1) == 1
    rows = contexts.shape[0]
    tables = FLOAT32 if query.dtype == torch.float32 else TABLE
    chosen = tiling or look_up(tables, capability(query.device), head_size * query.element_size())
    # Numbered as in ragged_prefill: room for the last, partly filled block of each row, known to the host without starts.
    blocks = tokens // chosen.queries + rows + 1
    _attend.launch(
        (heads, blocks), query, keys, values, table, seats, starts, contexts, query if slopes is None else slopes, out, query.stride(0),
        query.stride(1), table.stride(0), scale * LOG2_E, tokens, rows, heads=heads, kv_heads=kv_heads, head_size=head_size,
        width=power_of_two(max(16, head_size)), page_size=page_size, queries=chosen.queries, block=chosen.block, stages=chosen.stages,
        biased=slopes is not None, wide=wide(query.dtype, query.device), num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    return out


@kernel("seats", "starts", "contexts", "table_row", "tokens", "rows")
def _attend(
    query: Any, keys: Any, values: Any, table: Any, seats: Any, starts: Any, contexts: Any, slopes: Any, out: Any, query_token: Any,
    query_head: Any, table_row: Any, scale: Any, tokens: Any, rows: Any, heads: constexpr, kv_heads: constexpr, head_size: constexpr,
    width: constexpr, page_size: constexpr, queries: constexpr, block: constexpr, stages: constexpr, biased: constexpr, wide: constexpr,
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
    lane = tl.arange(0, block)
    token = begin + tl.arange(0, queries)
    ours = (token < stop)[:, None] & (d < head_size)[None, :]
    q = tl.load(query + token.to(tl.int64)[:, None] * query_token + head * query_head + d[None, :], mask=ours, other=0)
    if wide:
        q = q.to(tl.float32)
    kv_head = head // (heads // kv_heads)
    entries = table + tl.load(seats + row, mask=row < rows, other=0).to(tl.int64) * table_row
    first = context - (stop - begin)
    position = first + tl.arange(0, queries)
    # A padding row has no keys: its context is 0.
    end = tl.where(context > 0, tl.minimum(first + queries, context), 0)
    slope = 0.0
    if biased:
        slope = tl.load(slopes + head) * 1.4426950408889634
    best = tl.full([queries], -1.0e38, tl.float32)
    total = tl.zeros([queries], tl.float32)
    sums = tl.zeros([queries, width], tl.float32)
    page = tl.load(entries + lane // page_size, mask=lane < end, other=0)
    # One loop, masked throughout: the compiler might round elsewhere in a second one for keys that all see.
    for base in tl.range(0, end, block, num_stages=stages):
        key = base + lane
        there = key < end
        place = page.to(tl.int64) * page_size + key % page_size
        # The next iteration's pages come while this one's keys do.
        page = tl.load(entries + (key + block) // page_size, mask=key + block < end, other=0)
        at = (place * (kv_heads * head_size) + kv_head * head_size)[:, None] + d[None, :]
        real = there[:, None] & (d < head_size)[None, :]
        k = tl.load(keys + at, mask=real, other=0)
        v = tl.load(values + at, mask=real, other=0)
        if wide:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        if biased:
            # The pipeline holds several copies of this body. A product and a sum left to the compiler are one rounding in some of them
            # and two in others; said as one, they are one in all.
            score = tl.fma(score, scale, slope * (key[None, :] - position[:, None]).to(tl.float32))
        else:
            score *= scale
        # A block of which a query sees nothing leaves its best, mass and sums as they are, to the bit.
        score = tl.where(there[None, :] & (key[None, :] <= position[:, None]), score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        p = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(p, 1)
        sums = tl.dot(p.to(v.dtype), v, sums * shrink[:, None], input_precision="ieee")
        best = higher
    result = sums / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + (token.to(tl.int64)[:, None] * heads + head) * head_size + d[None, :], result, mask=ours)
