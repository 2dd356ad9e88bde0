"""Attention over a ragged batch and a contiguous cache.

A sweep's sequences are cut once into segments, runs of neighbours that one call can serve; every layer then follows the plan.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from inferometer.model.spec import Alibi, ModelSpec
from inferometer.nn.alibi import slopes
from inferometer.nn.batch import RaggedBatch
from inferometer.nn.cache import KVCache


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring sequences of one query length; of one context length too, unless they query a single token.

    tokens: their slice of the sweep's tokens. context: of the longest; even: of all.
    fresh: nothing of them is cached yet, so keys come from the sweep itself.
    mask: None, or additive (float) or boolean (True = seen), broadcastable to (sequences, heads, queries, context).
    causal: the mask is the plain triangle, which the kernel makes itself.
    """

    tokens: slice
    sequences: int
    queries: int
    context: int
    even: bool
    first_slot: int
    fresh: bool
    causal: bool
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """What every layer of one sweep shares.

    rotation: (cos, signed sin) of the sweep's tokens, None without rotary positions. slots, positions: int64 (tokens,), where
    keys and values go in the cache, None if there is no cache.
    """

    plan: tuple[Segment, ...]
    rotation: tuple[Tensor, Tensor] | None
    cache: KVCache | None
    slots: Tensor
    positions: Tensor


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """The context in which a sweep's attention runs on `device`.

    On a GPU cuDNN's attention is left out: it compiles a plan for every new shape, 40 to 100 ms (seen on H100 and H200 with torch 2.11),
    and in decode every step has a new context length.
    """
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def plan_attention(batch: RaggedBatch, spec: ModelSpec, dtype: torch.dtype, *, cached: bool) -> tuple[Segment, ...]:
    """The segments of a sweep with their masks. `cached`: there is a KV cache; without one every sequence must be fresh."""
    segments = []
    token, slot = 0, batch.first_slot
    for (queries, fresh, _), run in groupby(zip(batch.query_lengths, batch.context_lengths, strict=True), _kind):
        contexts = [context for _, context in run]
        if not fresh and not cached:
            raise ValueError("a sequence with earlier tokens needs the cache that holds them")
        tokens = slice(token, token + queries * len(contexts))
        positions = batch.positions[tokens].view(len(contexts), queries)
        mask = _mask(spec, contexts, queries, positions, dtype, fresh=fresh)
        causal = mask is None and not spec.encoder and queries > 1
        even = len(set(contexts)) == 1
        segments.append(Segment(tokens, len(contexts), queries, max(contexts), even, slot, fresh, causal, mask))
        token, slot = tokens.stop, slot + len(contexts)
    return tuple(segments)


def attend(query: Tensor, key: Tensor, value: Tensor, sweep: Sweep, layer: int, scale: float) -> Tensor:
    """Attention of query (tokens, heads, head_size) to key and value (tokens, kv_heads, head_size) and what the cache holds.

    Keys and values go to the cache first, if there is one. Returns (tokens, heads * head_size).
    """
    if sweep.cache is not None:
        for segment in sweep.plan:
            _store(key, value, segment, sweep, sweep.cache, layer)
    outputs = [_attend_segment(query, key, value, segment, sweep.cache, layer, scale) for segment in sweep.plan]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _store(key: Tensor, value: Tensor, segment: Segment, sweep: Sweep, cache: KVCache, layer: int) -> None:
    key, value = key[segment.tokens], value[segment.tokens]
    if not segment.even:
        cache.write(layer, sweep.slots[segment.tokens], sweep.positions[segment.tokens], key, value)
        return
    shape = (segment.sequences, segment.queries, *key.shape[1:])
    slots = slice(segment.first_slot, segment.first_slot + segment.sequences)
    positions = slice(segment.context - segment.queries, segment.context)
    cache.write_span(layer, slots, positions, key.view(shape).transpose(1, 2), value.view(shape).transpose(1, 2))


def _kind(lengths: tuple[int, int]) -> tuple[int, bool, int]:
    queries, context = lengths
    fresh = queries == context
    return queries, fresh, 0 if queries == 1 else context


def _mask(spec: ModelSpec, contexts: list[int], queries: int, positions: Tensor, dtype: torch.dtype, *, fresh: bool) -> Tensor | None:
    """positions: int64 (sequences, queries). None where no mask is needed or the kernel's own triangle serves."""
    alibi = isinstance(spec.positions, Alibi)
    if spec.encoder or (not alibi and (fresh or (queries == 1 and len(set(contexts)) == 1))):
        return None
    keys = torch.arange(max(contexts), device=positions.device)
    if not alibi:
        rows = positions if queries == 1 else positions[:1]  # sequences of one context length share their positions
        return (keys <= rows[:, :, None])[:, None]
    rows = positions[:1] if len(set(contexts)) == 1 else positions
    # Distances, not key positions: equal under softmax, and exact in 16 bits where it matters, close to the query.
    distance = keys - rows[:, None, :, None]
    return (_slopes(spec.heads, positions.device) * distance).masked_fill(distance > 0, float("-inf")).to(dtype)


@lru_cache
def _slopes(heads: int, device: torch.device) -> Tensor:
    """float32 (heads, 1, 1), kept on the device: a copy from the host in every sweep would make it wait."""
    return torch.tensor(slopes(heads), device=device)[:, None, None]


def _attend_segment(query: Tensor, key: Tensor, value: Tensor, segment: Segment, held: KVCache | None, layer: int, scale: float) -> Tensor:
    heads, head_size = query.shape[-2:]
    kv_heads = key.shape[-2]
    rows, queries = segment.sequences, segment.queries
    group = heads // kv_heads
    q = query[segment.tokens].view(rows, queries, heads, head_size).transpose(1, 2)
    if segment.fresh:
        k = key[segment.tokens].view(rows, queries, kv_heads, head_size).transpose(1, 2)
        v = value[segment.tokens].view(rows, queries, kv_heads, head_size).transpose(1, 2)
    else:
        assert held is not None
        slots = slice(segment.first_slot, segment.first_slot + rows)
        k = held.keys[layer, slots, :, : segment.context]
        v = held.values[layer, slots, :, : segment.context]
    mask = segment.mask
    if group > 1 and queries == 1:
        # The query heads that share a key head become its queries: no key is read or copied twice.
        q = q.reshape(rows, kv_heads, group, head_size)
        if mask is not None and mask.shape[1] == heads:
            mask = mask.reshape(mask.shape[0], kv_heads, group, -1)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return out.reshape(rows, heads * head_size)
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=segment.causal, scale=scale)
    return out.transpose(1, 2).reshape(rows * queries, heads * head_size)
