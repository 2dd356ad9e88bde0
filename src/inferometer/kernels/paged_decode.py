"""Attention of one query token a sequence to the keys and values in its pages."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.arrivals import MOST_ARRIVALS, arrivals
from inferometer.kernels.decode_alone import attend_alone
from inferometer.kernels.decode_group import attend_group
from inferometer.kernels.decode_launch import AHEAD, GROUPED, RESIDENT, Cut, cut, launch_for
from inferometer.kernels.kv_scaled import PageScales, bytes_of, kind_of, wide_rows
from inferometer.kernels.kv_write import kv_write_torch
from inferometer.kernels.rotary_write import rotate
from inferometer.kernels.support import FP8_CONVERSION, Tiles, capability, early, look_up, power_of_two, processors, usable, wide

LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Fresh:
    """What the launch that attends writes to the pages itself: one launch less, where no other row of the sweep reads it.

    key, value: (rows, kv_heads, head_size), views whose last dimension is contiguous, of the token at position context - 1.
    rotation: cosines and signed sines (rows, 1, head_size) by which query and key are still to be rotated, see `rotate`; None if they
    are not. The launch before may write all of these, but not the table, seats or contexts.
    """

    key: Tensor
    value: Tensor
    rotation: tuple[Tensor, Tensor] | None = None


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
    fresh: Fresh | None = None,
    scales: PageScales | None = None,
) -> Tensor:
    """Softmax(scale * query . keys + bias) . values for every row, over the `contexts[row]` positions of its sequence.

    query: (rows, heads, head_size), the last dimension contiguous. keys, values: (places, kv_heads, head_size), contiguous, of the
    same dtype or with scales; position p of the sequence in seat s is at place table[s, p // page_size] * page_size + p % page_size.
    table: int32 (seats, stride). seats, contexts: int32 (rows,); a context counts the token that asks, and 0 marks a padding row,
    whose result is zeros. longest: no context is above it, in no replay either if the call is captured in a graph; it decides
    into how many parts contexts are split. slopes: float32 (heads,), adds slope * (key position - query position).
    fresh: keys and values of the rows' own tokens, which go to their pages first; None if they are there.
    scales: of keys and values in 8 bits, int8 or float8_e4m3fn, which the rows' own tokens have gone to already.
    Returns (rows, heads, head_size), contiguous.

    Moves 2 * sum(contexts) * kv_heads * head_size elements of keys and values, and 2 * rows * heads * head_size of queries and results.
    """
    if usable(query.device):
        return paged_decode_triton(
            query, keys, values, table, seats, contexts, page_size=page_size, scale=scale, longest=longest, slopes=slopes, fresh=fresh,
            scales=scales,
        )  # fmt: skip
    return paged_decode_torch(
        query, keys, values, table, seats, contexts, page_size=page_size, scale=scale, slopes=slopes, fresh=fresh, scales=scales
    )


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
    fresh: Fresh | None = None,
    scales: PageScales | None = None,
) -> Tensor:
    """The reference: every row's keys and values copied side by side, padded to the longest."""
    assert fresh is None or scales is None
    if fresh is not None:
        query = _write_fresh(query, fresh, keys, values, table, seats, contexts, page_size)
    (rows, heads, head_size), kv_heads = query.shape, keys.shape[1]
    longest = max(1, int(contexts.max())) if rows else 1
    position = torch.arange(longest, device=query.device)
    seen = position < contexts[:, None]
    places = table[seats.long()[:, None], torch.where(seen, position // page_size, 0)].long() * page_size + position % page_size
    # What lies in unused places may be no number, and 0 times that is no number either: the first key stands in for them.
    places = torch.where(seen, places, torch.where(seen[:, :1], places[:, :1], 0)).flatten()
    both = ((keys, None), (values, None)) if scales is None else ((keys, scales.keys), (values, scales.values))
    wide_heads = (wide_rows(held, scale_of, places, page_size, query.dtype) for held, scale_of in both)
    k, v = (held.view(rows, longest, kv_heads, head_size).transpose(1, 2) for held in wide_heads)
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
    fresh: Fresh | None = None,
    scales: PageScales | None = None,
    tiling: Tiles | None = None,
    cutting: Cut | None = None,
) -> Tensor:
    """The kernels. tiling, cutting: instead of what the tables and `cut` say. No fresh keys beside scales."""
    (rows, heads, head_size), kv_heads = query.shape, keys.shape[1]
    out = torch.empty((rows, heads, head_size), dtype=query.dtype, device=query.device)
    if rows == 0:
        return out
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert query.stride(2) == table.stride(1) == 1
    kind = kind_of(keys)
    assert (kind is None) == (scales is None)
    assert fresh is None or scales is None
    group = heads // kv_heads
    # Grouped heads are widened to the query's type, and take its room.
    held_bytes = query.element_size() if kind is None or group > 1 else 1
    card, head_bytes, count = capability(query.device), head_size * held_bytes, processors(query.device)
    members = 1 if group == 1 else min((tiling or look_up(GROUPED, card, head_bytes)).queries, power_of_two(max(16, group)))
    programs = kv_heads * -(-group // members)
    split = cutting or cut(rows * programs, longest, count, members=members)
    if rows * programs > MOST_ARRIVALS:
        # These fill every card by themselves.
        split = replace(split, parts=1)
    parts = split.parts
    chosen = tiling or launch_for(
        rows * programs, split, longest, count, members=members, narrow=kind is not None, card=card, head_bytes=head_bytes
    )
    partial, weight, arrived = out, out, out
    if parts > 1:
        arrived = arrivals(query.device)
        partial = torch.empty((rows, heads, parts, head_size), dtype=torch.float32, device=query.device)
        weight = torch.empty((rows, heads, parts), dtype=torch.float32, device=query.device)
    width = power_of_two(max(16, head_size))
    # Without fresh keys the launch ahead may be the one that writes the block table, which is read before that has ended.
    early_options: dict[str, Any] = {"early": False} if fresh is None else early(query.device)
    key, value, cos, sin = query, query, query, query
    key_row = key_head = value_row = value_head = 0
    turned = fresh is not None and fresh.rotation is not None
    if fresh is not None:
        key, value = fresh.key, fresh.value
        assert key.stride(2) == value.stride(2) == 1
        key_row, key_head, value_row, value_head = key.stride(0), key.stride(1), value.stride(0), value.stride(1)
        if fresh.rotation is not None:
            cos, sin = fresh.rotation
            assert cos.is_contiguous()
            assert sin.is_contiguous()
    ahead = rows * programs * parts <= (AHEAD if group == 1 else 1) * count
    if ahead and group == 1:
        # Beside a product's programs, which take three quarters of a processor's registers, or RESIDENT of its own kind.
        early_options |= {"maxnreg": 65536 // RESIDENT // (32 * chosen.warps)}
    (attend_alone if group == 1 else attend_group).launch(
        (programs, rows, parts), query, bytes_of(keys), bytes_of(values), query if scales is None else scales.keys,
        query if scales is None else scales.values, table, seats, contexts, query if slopes is None else slopes, out, partial, weight,
        arrived, key, value, cos, sin, query.stride(0), query.stride(1), table.stride(0), key_row, key_head, value_row, value_head,
        scale * LOG2_E, heads=heads, kv_heads=kv_heads, head_size=head_size, width=width, members=members, page_size=page_size,
        block=chosen.block, stages=chosen.stages, least=split.least, whole=parts == 1, biased=slopes is not None, fresh=fresh is not None,
        turned=turned, ahead=ahead, most=power_of_two(parts), wide=wide(query.dtype, query.device), kind=kind,
        assembled=card >= FP8_CONVERSION, num_warps=chosen.warps, num_stages=chosen.stages, **early_options,
    )  # fmt: skip
    return out


def _write_fresh(
    query: Tensor, fresh: Fresh, keys: Tensor, values: Tensor, table: Tensor, seats: Tensor, contexts: Tensor, page_size: int
) -> Tensor:
    """Puts fresh keys and values into the pages, rotated if need be. Returns the query, rotated if need be."""
    newest = (contexts.long() - 1).clamp(min=0)
    places = table[seats.long(), newest // page_size].long() * page_size + newest % page_size
    key = fresh.key
    if fresh.rotation is not None:
        query, key = rotate(query, *fresh.rotation), rotate(key, *fresh.rotation)
    kv_write_torch(key, fresh.value, keys, values, torch.where(contexts > 0, places, -1))
    return query
