"""Tiny models of every build, and sweeps through them, compiled or of modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from inferometer.model.spec import Alibi, LearnedPositions, ModelSpec, Rotary
from inferometer.nn.batch import CachedRows, RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.compiled_model import CompiledModel
from inferometer.nn.transformer import Transformer

CPU = torch.device("cpu")
PAGE_SIZE = 16
LLAMA = ModelSpec(
    name="tiny", family="llama", layers=2, hidden=32, heads=6, kv_heads=2, head_size=16, feed_forward=48, vocabulary=97,
    positions=Rotary(10000.0), norm="rms", norm_epsilon=1e-5, activation="silu", context_limit=2048, embedding=32, attention_scale=0.25,
    gated=True, qkv_bias=False, output_bias=False, feed_forward_bias=False,
)  # fmt: skip
GPT2 = replace(
    LLAMA, heads=2, positions=LearnedPositions(2048), norm="layer", activation="gelu_tanh", gated=False, qkv_bias=True, output_bias=True,
    feed_forward_bias=True, scale_by_inverse_layer=True,
)  # fmt: skip
SPECS = {
    "llama": LLAMA,
    "gpt2": GPT2,
    "bloom": replace(GPT2, heads=3, kv_heads=3, positions=Alibi(), activation="gelu", embedding_norm=True, residual_after_norm=True),
    "opt, norms behind": replace(GPT2, norm_placement="post", final_norm=False, embedding=16, activation="relu", norm_affine=False),
    "one key head": replace(GPT2, heads=7, kv_heads=1, tied_head=False),
    "sizes that fit nothing": replace(LLAMA, hidden=35, embedding=35, heads=3, kv_heads=3, head_size=22, feed_forward=41),
    "head size 80": replace(LLAMA, head_size=80, kv_heads=1),
    "head size 256": replace(LLAMA, head_size=256, heads=2, kv_heads=1, layers=1),
    "wide": replace(LLAMA, hidden=160, embedding=160, feed_forward=192, layers=1),
}


def model_of(spec: ModelSpec, dtype: torch.dtype) -> Transformer:
    """Random weights, large enough that every part of a layer changes the result."""
    model = Transformer(spec, CPU, dtype)
    generator = torch.Generator().manual_seed(len(spec.name) + spec.hidden)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + mean)
    return model


def batch_of(contexts: Sequence[tuple[int, int]], vocabulary: int, pages: int) -> RaggedBatch:
    """Sequences of so many query tokens at the end of so long a context; whose pages they are is random."""
    generator = torch.Generator().manual_seed(sum(context for _, context in contexts))
    stride = -(-max(context for _, context in contexts) // PAGE_SIZE)
    table = torch.randperm(pages, generator=generator)[: stride * len(contexts)].to(torch.int32).view(len(contexts), stride)
    positions = torch.cat([torch.arange(context - queries, context) for queries, context in contexts])
    seats = torch.arange(len(contexts), dtype=torch.int32)
    owner = seats.long().repeat_interleave(torch.tensor([queries for queries, _ in contexts]))
    starts = torch.tensor([0, *(queries for queries, _ in contexts)]).cumsum(0).int()
    places = table[owner, positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE
    return RaggedBatch(
        token_ids=torch.randint(vocabulary, positions.shape, generator=generator),
        positions=positions,
        query_lengths=tuple(queries for queries, _ in contexts),
        context_lengths=tuple(context for _, context in contexts),
        rotary_lengths=positions + 1,
        rows=CachedRows(table, seats, torch.tensor([context for _, context in contexts], dtype=torch.int32), starts, places),
    )


@cache
def drawn(shape: torch.Size) -> Tensor:
    """Numbers for the caches of that shape, which copy them."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def cache_of(spec: ModelSpec, dtype: torch.dtype, pages: int) -> PagedCache:
    made = PagedCache(spec, pages, PAGE_SIZE, CPU, dtype)
    made._memory.copy_(drawn(made._memory.shape))
    return made


def compiled_of(model: Transformer) -> CompiledModel:
    compiled = CompiledModel.of(model)
    assert compiled is not None
    return compiled


def swept(model: Transformer, compiled: CompiledModel | None, batch: RaggedBatch, pages: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, logits, and the cache afterwards."""
    cache = cache_of(model.spec, model.dtype, pages)
    model.compiled = compiled
    with torch.inference_mode():
        hidden = model.sweep(batch, cache)
        return hidden.clone(), model.logits(hidden), cache._memory


CONTEXTS = {
    "one": [(1, 5)],
    "first token": [(1, 1)],
    "some": [(1, 17), (1, 16), (1, 40), (1, 1)],
    "pieces of prompts": [(1, 30), (4, 20), (7, 7)],
    "more than a tile": [(1, 3 + i) for i in range(20)],
    "long": [(1, 700), (1, 257), (1, 256), (2, 300)],
    "a prompt beside some": [(1, 40), (1, 9), (44, 60)],
}
