"""Attention of every token to the keys before it, the same bits in any company and in any chunk."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.invariant_attention import invariant_attention
from inferometer.model.spec import Alibi, ModelSpec
from inferometer.nn.alibi import slopes_of
from inferometer.nn.batch import CachedRows, RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.paged_attention import slopes_on


@dataclass(frozen=True, slots=True)
class InvariantPages:
    """A sweep over pages on a GPU. slopes: float32 (heads,) of ALiBi, None for other models."""

    slopes: Tensor | None

    @classmethod
    def of(cls, batch: RaggedBatch, spec: ModelSpec) -> InvariantPages:
        return cls(slopes_on(spec.positions, spec.heads, batch.token_ids.device) if isinstance(spec.positions, Alibi) else None)

    def attend(self, query: Tensor, rows: CachedRows, cache: PagedCache, layer: int, scale: float) -> Tensor:
        """Attention of query (tokens, heads, head_size) to the keys in the pages: (tokens, heads * head_size)."""
        return invariant_attention(
            query,
            *cache.layer(layer),
            rows.table,
            rows.seats,
            rows.starts,
            rows.contexts,
            page_size=cache.page_size,
            scale=scale,
            slopes=self.slopes,
        ).flatten(1)


@dataclass(frozen=True, slots=True)
class Span:
    """A sequence's tokens in a sweep. pages: int64, where its keys lie; None where they are the sweep's own. context: how many."""

    tokens: slice
    context: int
    pages: Tensor | None


@dataclass(frozen=True, slots=True)
class TokenByToken:
    """A causal sweep on the CPU: every token is attended to alone, by a call that sees its own keys and nothing else.

    biases: float32 (heads, context of the longest) of ALiBi, slope * (key position - query position) of the last position; None for
    other models.
    """

    spans: tuple[Span, ...]
    biases: Tensor | None

    @classmethod
    def of(cls, batch: RaggedBatch, spec: ModelSpec, cache: PagedCache | None) -> TokenByToken:
        spans = []
        token = 0
        for sequence, (queries, context) in enumerate(zip(batch.query_lengths, batch.context_lengths, strict=True)):
            pages = None
            if cache is not None:
                assert batch.rows is not None
                needed = -(-context // cache.page_size)
                pages = batch.rows.table[int(batch.rows.seats[sequence]), :needed].to(torch.int64)
            spans.append(Span(slice(token, token + queries), context, pages))
            token += queries
        biases = None
        if isinstance(spec.positions, Alibi):
            biases = torch.tensor(slopes_of(spec.positions, spec.heads))[:, None] * torch.arange(1 - max(batch.context_lengths), 1)
        return cls(tuple(spans), biases)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, cache: PagedCache | None, layer: int, scale: float) -> Tensor:
        """Attention of query (tokens, heads, head_size) to key and value (tokens, kv_heads, head_size), which `cache` holds already.

        Returns (tokens, heads * head_size).
        """
        out = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
        for span in self.spans:
            if span.pages is None:
                k, v = key[span.tokens].clone(), value[span.tokens].clone()
            else:
                assert cache is not None
                # Side by side, wherever the pages lie: so that every token finds its keys at equally aligned addresses.
                k, v = (_gathered(held, span.pages, cache.page_size) for held in cache.layer(layer))
            first = span.context - (span.tokens.stop - span.tokens.start)
            for i, token in enumerate(range(span.tokens.start, span.tokens.stop)):
                out[token] = self._one(query[token], k[: first + i + 1], v[: first + i + 1], scale)
        return out

    def _one(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query (heads, head_size), key and value (context, kv_heads, head_size) -> (heads * head_size,)."""
        context, kv_heads, head_size = key.shape
        # The query heads that share a key head become its queries.
        q = query.clone(memory_format=torch.contiguous_format).view(1, kv_heads, -1, head_size)
        mask = None
        if self.biases is not None:
            mask = self.biases[:, self.biases.shape[1] - context :].to(query.dtype).view(1, kv_heads, -1, context).contiguous()
        k, v = key.transpose(0, 1)[None], value.transpose(0, 1)[None]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).flatten()


def _gathered(memory: Tensor, pages: Tensor, page_size: int) -> Tensor:
    """Keys or values of a layer (places, kv_heads, head_size) -> (pages * page_size, kv_heads, head_size)."""
    return memory.view(-1, page_size, *memory.shape[1:]).index_select(0, pages).flatten(0, 1)
