"""A case of `benchmarks/attention_kernels.py` on the GPU: its layers' pages, a launch over each, and the reference beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from attention_cases import DTYPE, Decode, Prefill
from attention_launches import Choice
from gpu_clock import CACHE_BYTES, milliseconds
from torch import Tensor

from inferometer.kernels import paged_decode, ragged_prefill
from inferometer.nn.alibi import slopes as alibi

PAGE_SIZE = 16


@dataclass(frozen=True)
class Pool:
    keys: Tensor
    values: Tensor
    table: Tensor
    seats: Tensor


def pools(case: Decode | Prefill) -> list[Pool]:
    """As many layers as outgrow the cache, at most 256. Pages lie in no order; all layers share the block table."""
    counts = [-(-context // PAGE_SIZE) for context in case.contexts]
    order = torch.randperm(sum(counts), dtype=torch.int32, device="cuda")
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device="cuda")
    first = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[first : first + count]
        first += count
    seats = torch.arange(len(counts), dtype=torch.int32, device="cuda")
    shape = (sum(counts) * PAGE_SIZE, case.kv_heads, case.head_size)
    layers = min(256, -(-CACHE_BYTES // (2 * DTYPE.itemsize * shape[0] * shape[1] * shape[2])))
    return [Pool(*(torch.randn(shape, dtype=DTYPE, device="cuda") for _ in range(2)), table, seats) for _ in range(layers)]


def slopes_of(case: Decode | Prefill) -> Tensor | None:
    return torch.tensor(alibi(case.heads), device="cuda") if isinstance(case, Prefill) and case.biased else None


def launches(case: Decode | Prefill, held: list[Pool], query: Tensor, choice: Choice) -> list[Callable[[], Tensor]]:
    contexts = torch.tensor(case.contexts, dtype=torch.int32, device="cuda")
    slopes = slopes_of(case)
    scale = case.head_size**-0.5
    if isinstance(case, Decode):
        return [
            lambda pool=pool: paged_decode.paged_decode_triton(
                query,
                pool.keys,
                pool.values,
                pool.table,
                pool.seats,
                contexts,
                page_size=PAGE_SIZE,
                scale=scale,
                longest=max(case.contexts),
                tiling=choice.tiles,
                cutting=choice.cut,
            )
            for pool in held
        ]
    starts = starts_of(case)
    return [
        lambda pool=pool: ragged_prefill.ragged_prefill_triton(
            query,
            pool.keys,
            pool.values,
            pool.table,
            pool.seats,
            starts,
            contexts,
            page_size=PAGE_SIZE,
            scale=scale,
            longest_query=max(count for count, _ in case.rows),
            slopes=slopes,
            tiling=choice.tiles,
        )
        for pool in held
    ]


def starts_of(case: Prefill) -> Tensor:
    return torch.tensor([0, *torch.tensor([count for count, _ in case.rows]).cumsum(0).tolist()], dtype=torch.int32, device="cuda")


def check(case: Decode | Prefill, pool: Pool, query: Tensor, got: Tensor) -> None:
    """Against the reference in float32 on the first rows. Raises AssertionError with what differs."""
    rows = 2
    contexts = torch.tensor(case.contexts[:rows], dtype=torch.int32, device="cuda")
    pages = pool.keys, pool.values, pool.table, pool.seats[:rows]
    scale = case.head_size**-0.5
    if isinstance(case, Decode):
        want = paged_decode.paged_decode_torch(query[:rows], *pages, contexts, page_size=PAGE_SIZE, scale=scale)
    else:
        starts = starts_of(case)[: rows + 1]
        asked = query[: int(starts[-1])]
        slopes = slopes_of(case)
        want = ragged_prefill.ragged_prefill_torch(asked, *pages, starts, contexts, page_size=PAGE_SIZE, scale=scale, slopes=slopes)
    torch.testing.assert_close(got[: len(want)], want, atol=2e-2, rtol=2e-2)


def compile_ahead(case: Decode | Prefill, choices: tuple[Choice, ...]) -> None:
    """In a process of its own: what is compiled lies in Triton's cache on disk then. A failure is told when the launch is timed."""
    small = replace(case, rows=((1, 1),)) if isinstance(case, Prefill) else replace(case, contexts=(1,))
    held = pools(small)[:1]
    query = torch.zeros(1, case.heads, case.head_size, dtype=DTYPE, device="cuda")
    for choice in choices:
        with suppress(Exception):
            launches(small, held, query, choice)[0]()


def torchs_own(case: Prefill, pool: Pool, query: Tensor) -> float | None:
    """Milliseconds of torch's flash attention on keys that lie side by side; None for ALiBi, which it does not take."""
    if case.biased:
        return None
    tokens = sum(case.contexts)
    key, value = (held[:tokens].repeat_interleave(case.heads // case.kv_heads, 1) for held in (pool.keys, pool.values))
    bounds = torch.tensor([0, *torch.tensor(case.contexts).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    starts, most = starts_of(case), max(count for count, _ in case.rows)
    run = torch.ops.aten._flash_attention_forward
    return milliseconds([lambda: run(query, key, value, starts, bounds, most, max(case.contexts), 0.0, True, False)[0]] * 2)
