"""Attention through torch's own kernels: a sweep's sequences are cut once into segments, runs of neighbours that one call can serve.

This is how the CPU attends, and a GPU that has no cache to read (encoders, a forward that keeps nothing) or no Triton.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from inferometer.model.spec import Alibi, ModelSpec
from inferometer.nn.alibi import slopes_of
from inferometer.nn.batch import RaggedBatch
from inferometer.nn.cache import PagedCache


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring sequences of one query length; of one context length too, unless they query a single token.

    tokens: their slice of the sweep's tokens. context: of the longest.
    pages: None where nothing of them is cached yet, so that keys come from the sweep itself; else where the keys lie: a slice of
    page numbers where they lie one after another, or int64 (sequences * pages of the longest,) page numbers. A cache in 8 bits is always
    read: so a prompt's chunks change nothing.
    mask: None, or additive (float) or boolean (True = seen), broadcastable to (sequences, heads, queries, context).
    causal: the mask is the plain triangle, which the kernel makes itself.
    """

    tokens: slice
    sequences: int
    queries: int
    context: int
    pages: slice | Tensor | None
    causal: bool
    mask: Tensor | None


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """The context in which torch's attention runs on `device`.

    On a GPU cuDNN's attention is left out: it compiles a plan for every new shape, 40 to 100 ms (seen on H100 and H200 with torch 2.11).
    """
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def plan_segments(batch: RaggedBatch, spec: ModelSpec, dtype: torch.dtype, cache: PagedCache | None) -> tuple[Segment, ...]:
    """The segments of a sweep with their masks."""
    segments = []
    token = sequence = 0
    narrow = cache is not None and cache.key_scales is not None
    for (queries, whole, _), run in groupby(zip(batch.query_lengths, batch.context_lengths, strict=True), _kind):
        fresh = whole and not narrow
        contexts = [context for _, context in run]
        tokens = slice(token, token + queries * len(contexts))
        positions = batch.positions[tokens].view(len(contexts), queries)
        mask = _mask(spec, contexts, queries, positions, dtype, fresh=whole)
        causal = mask is None and not spec.encoder and queries > 1
        pages = None if fresh else _pages(batch, cache, sequence, len(contexts), max(contexts))
        segments.append(Segment(tokens, len(contexts), queries, max(contexts), pages, causal, mask))
        token, sequence = tokens.stop, sequence + len(contexts)
    return tuple(segments)


def attend_segments(
    query: Tensor, key: Tensor, value: Tensor, plan: tuple[Segment, ...], cache: PagedCache | None, layer: int, scale: float
) -> Tensor:
    """Attention of query (tokens, heads, head_size) to key and value (tokens, kv_heads, head_size), which `cache` holds already.

    Returns (tokens, heads * head_size).
    """
    outputs = [_attend(query, key, value, segment, cache, layer, scale) for segment in plan]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _kind(lengths: tuple[int, int]) -> tuple[int, bool, int]:
    queries, context = lengths
    fresh = queries == context
    return queries, fresh, 0 if queries == 1 and not fresh else context


def _pages(batch: RaggedBatch, cache: PagedCache | None, first: int, sequences: int, context: int) -> slice | Tensor:
    assert cache is not None
    assert batch.rows is not None
    needed = -(-context // cache.page_size)
    table = batch.rows.table[:, :needed].index_select(0, batch.rows.seats[first : first + sequences])
    if sequences == 1 and table.device.type == "cpu":
        pages = table[0].tolist()
        if pages == list(range(pages[0], pages[0] + needed)):  # neighbours in memory: no key need be gathered
            return slice(pages[0], pages[0] + needed)
    return table.flatten().to(torch.int64)


def _mask(spec: ModelSpec, contexts: list[int], queries: int, positions: Tensor, dtype: torch.dtype, *, fresh: bool) -> Tensor | None:
    """positions: int64 (sequences, queries). None where no mask is needed or the kernel's own triangle serves."""
    alibi = spec.positions if isinstance(spec.positions, Alibi) else None
    even = len(set(contexts)) == 1
    if spec.encoder or (alibi is None and (fresh or (queries == 1 and even))):
        return None
    keys = torch.arange(max(contexts), device=positions.device)
    rows = positions[:1] if even else positions  # sequences of one context length share their positions
    if alibi is None:
        return (keys <= rows[:, :, None])[:, None]
    # Distances, not key positions: equal under softmax, and exact in 16 bits where it matters, close to the query.
    distance = keys - rows[:, None, :, None]
    return (_slopes(alibi, spec.heads, positions.device) * distance).masked_fill(distance > 0, float("-inf")).to(dtype)


@lru_cache
def _slopes(alibi: Alibi, heads: int, device: torch.device) -> Tensor:
    """float32 (heads, 1, 1), kept on the device: a copy from the host in every sweep would make it wait."""
    return torch.tensor(slopes_of(alibi, heads), device=device)[:, None, None]


def _held(cache: PagedCache, memory: Literal["keys", "values"], segment: Segment, layer: int, dtype: torch.dtype) -> Tensor:
    """The segment's keys or values, (sequences, kv_heads, context, head_size)."""
    assert segment.pages is not None
    pages = cache.held(memory, layer, segment.pages, dtype)
    return pages.view(segment.sequences, -1, *pages.shape[2:])[:, : segment.context].transpose(1, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, segment: Segment, cache: PagedCache | None, layer: int, scale: float) -> Tensor:
    heads, head_size = query.shape[-2:]
    kv_heads = key.shape[-2]
    rows, queries = segment.sequences, segment.queries
    group = heads // kv_heads
    q = query[segment.tokens].view(rows, queries, heads, head_size).transpose(1, 2)
    if segment.pages is None:
        k = key[segment.tokens].view(rows, queries, kv_heads, head_size).transpose(1, 2)
        v = value[segment.tokens].view(rows, queries, kv_heads, head_size).transpose(1, 2)
    else:
        assert cache is not None
        k = _held(cache, "keys", segment, layer, query.dtype)
        v = _held(cache, "values", segment, layer, query.dtype)
    mask = segment.mask
    if group > 1 and queries == 1:
        # The query heads that share a key head become its queries: no key is read or copied twice.
        q = q.reshape(rows, kv_heads, group, head_size)
        if mask is not None and mask.shape[1] == heads:
            mask = mask.reshape(mask.shape[0], kv_heads, group, -1)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return out.reshape(rows, heads * head_size)
    shared = group > 1 and _shares_keys(q, k, v, segment)
    if group > 1 and not shared:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=segment.causal, scale=scale, enable_gqa=shared)
    return out.transpose(1, 2).reshape(rows * queries, heads * head_size)


def _shares_keys(q: Tensor, k: Tensor, v: Tensor, segment: Segment) -> bool:
    """Whether torch attends with fewer key heads than queries have, without making the rest: its flash kernels on a GPU do."""
    if not q.is_cuda or segment.mask is not None:
        return False
    return can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, segment.causal, True))
