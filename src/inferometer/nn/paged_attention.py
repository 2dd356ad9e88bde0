"""Attention on a GPU: kernels that read the pages where they lie.

Sequences with a single query token come first in a sweep, prompts and pieces of prompts after them: each kind is one launch a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from inferometer.kernels.decode_short import decode_parts, serves
from inferometer.kernels.head_parts import HeadParts
from inferometer.kernels.paged_decode import Fresh, paged_decode
from inferometer.kernels.ragged_prefill import ragged_prefill
from inferometer.model.spec import Alibi, ModelSpec
from inferometer.nn.alibi import slopes_of
from inferometer.nn.batch import CachedRows, RaggedBatch
from inferometer.nn.cache import PagedCache


@dataclass(frozen=True, slots=True)
class PagedPlan:
    """How a sweep's sequences are attended to.

    decoding: how many at the front query one token. longest: the most tokens that any of those can hold.
    starts: int32 (others + 1,), where each of the others begins behind them. longest_query: the most query tokens of one of them.
    slopes: float32 (heads,) of ALiBi, None for other models.
    """

    decoding: int
    longest: int
    starts: Tensor
    longest_query: int
    slopes: Tensor | None


def plan_pages(batch: RaggedBatch, spec: ModelSpec) -> PagedPlan:
    """The plan of a sweep, in which sequences with one query token come first."""
    assert batch.rows is not None
    queries = batch.query_lengths
    decoding = next((i for i, count in enumerate(queries) if count > 1), len(queries))
    return PagedPlan(
        decoding=decoding,
        longest=max(batch.context_lengths[:decoding], default=0),
        starts=batch.rows.starts[decoding:] - decoding,
        longest_query=max(queries[decoding:], default=0),
        slopes=slopes_on(spec.positions, spec.heads, batch.token_ids.device) if isinstance(spec.positions, Alibi) else None,
    )


def attend_pages(
    query: Tensor, plan: PagedPlan, rows: CachedRows, cache: PagedCache, layer: int, scale: float, fresh: Fresh | None = None
) -> Tensor:
    """Attention of query (tokens, heads, head_size) to the keys that lie in the pages, the sweep's own included.

    fresh: those, where they have yet to go there; only if all sequences run one token, and not to pages in 8 bits.
    Returns (tokens, heads * head_size).
    """
    keys, values = cache.layer(layer)
    scales, first = cache.scales(layer), plan.decoding
    outputs = []
    if first:
        outputs.append(
            paged_decode(
                query[:first],
                keys,
                values,
                rows.table,
                rows.seats[:first],
                rows.contexts[:first],
                page_size=cache.page_size,
                scale=scale,
                longest=plan.longest,
                slopes=plan.slopes,
                fresh=fresh,
                scales=scales,
            )
        )
    if plan.longest_query:
        assert fresh is None
        outputs.append(
            ragged_prefill(
                query[first:],
                keys,
                values,
                rows.table,
                rows.seats[first:],
                plan.starts,
                rows.contexts[first:],
                page_size=cache.page_size,
                scale=scale,
                longest_query=plan.longest_query,
                slopes=plan.slopes,
                scales=scales,
            )
        )
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return out.flatten(1)


def attend_pages_in_parts(
    query: Tensor, plan: PagedPlan, rows: CachedRows, cache: PagedCache, layer: int, scale: float, fresh: Fresh
) -> HeadParts | None:
    """As `attend_pages` of sequences that all run one token, query (rows, heads, head_size), in parts; None where there are
    too many keys for that, or heads share them.
    """
    keys, values = cache.layer(layer)
    count, heads, head_size = query.shape
    if keys.dtype != query.dtype or not serves(count, heads, keys.shape[1], head_size, plan.longest, query.device):
        return None
    return decode_parts(
        query,
        keys,
        values,
        rows.table,
        rows.seats,
        rows.contexts,
        page_size=cache.page_size,
        scale=scale,
        longest=plan.longest,
        fresh=fresh,
        slopes=plan.slopes,
    )


@lru_cache
def slopes_on(positions: Alibi, heads: int, device: torch.device) -> Tensor:
    """float32 (heads,), kept on the device: a copy from the host in every sweep would make it wait."""
    return torch.tensor(slopes_of(positions, heads), device=device)
