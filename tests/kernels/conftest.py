"""Sequences whose keys and values lie in pages, the exact answer to them, and Triton's interpreter."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import forked

STALE = 10**8
"""A page that no pool has: reading through it would be noticed."""


@dataclass
class Pages:
    """A layer's pool and the sequences in it. Unused places hold NaN, unused entries of the table STALE pages.

    key, value: what each sequence's positions hold, (context, kv_heads, head_size).
    """

    keys: Tensor
    values: Tensor
    table: Tensor
    seats: Tensor
    contexts: Tensor
    page_size: int
    key: list[Tensor]
    value: list[Tensor]

    @classmethod
    def fill(
        cls,
        contexts: list[int],
        kv_heads: int,
        head_size: int,
        *,
        dtype: torch.dtype = torch.float32,
        page_size: int = 16,
        seed: int = 0,
        device: str = "cpu",
    ) -> Pages:
        draw = torch.Generator().manual_seed(seed)
        counts = [-(-context // page_size) for context in contexts]
        pool = sum(counts) + 3
        pages = iter(torch.randperm(pool, generator=draw).tolist())
        seats = torch.randperm(len(contexts) + 2, generator=draw)[: len(contexts)].int()
        table = torch.full((len(contexts) + 2, max(counts, default=0) + 2), STALE, dtype=torch.int32)
        keys = torch.full((pool * page_size, kv_heads, head_size), torch.nan, dtype=dtype)
        values = keys.clone()
        key, value = [], []
        for context, count, seat in zip(contexts, counts, seats.tolist(), strict=True):
            own = torch.tensor([next(pages) for _ in range(count)], dtype=torch.int32)
            table[seat, :count] = own
            position = torch.arange(context)
            places = own[position // page_size].long() * page_size + position % page_size
            key.append(torch.randn(context, kv_heads, head_size, generator=draw).to(dtype))
            value.append(torch.randn(context, kv_heads, head_size, generator=draw).to(dtype))
            keys[places], values[places] = key[-1], value[-1]
        held = torch.tensor(contexts, dtype=torch.int32)
        on_device = [tensor.to(device) for tensor in (keys, values, table, seats, held)]
        return cls(*on_device, page_size, key, value)

    def exact(self, query: Tensor, row: int, scale: float, slopes: Tensor | None = None) -> Tensor:
        """Attention in float64 of the last queries of a row, (queries, heads, head_size), by the formula alone."""
        query, key, value = query.cpu().double(), self.key[row].double(), self.value[row].double()
        count, heads, _ = query.shape
        out = torch.zeros_like(query)
        for i in range(count):
            position = len(key) - count + i
            for head in range(heads):
                kv_head = head * key.shape[1] // heads
                scores = scale * key[: position + 1, kv_head] @ query[i, head]
                if slopes is not None:
                    scores += slopes[head].item() * (torch.arange(position + 1) - position)
                out[i, head] = scores.softmax(0) @ value[: position + 1, kv_head]
        return out


def _interpreter_refuses() -> str:
    """Why Triton's interpreter cannot run the kernels here; empty if it can."""
    if importlib.util.find_spec("triton") is None:
        return "needs triton"
    triton, numpy = (tuple(int(part) for part in importlib.metadata.version(name).split(".")[:2]) for name in ("triton", "numpy"))
    if triton < (3, 7) and numpy >= (2, 4):
        return "triton before 3.7 cannot interpret a loop up to a tensor with numpy 2.4 and later, which turn no array into a number"
    return ""


@pytest.fixture(scope="session")
def interpreted() -> Iterator[Callable[..., Any]]:
    """Runs a function of the package, with its arguments, where Triton interprets kernels.

    That is another process: Triton decides once, when it is imported, and the tests that compile kernels must not be in its way.
    """
    if reason := _interpreter_refuses():
        pytest.skip(reason)
    with ProcessPoolExecutor(1, mp_context=forked.context(), initializer=forked.begin_interpreting) as pool:
        yield lambda function, *arguments, **named: pool.submit(function, *arguments, **named).result()


@pytest.fixture
def pages() -> type[Pages]:
    return Pages


@pytest.fixture
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What stands in for a GPU of the compute capability that is the parameter: a `compiled_kernels.Card`."""
    from compiled_kernels import card_of  # only here, as it needs triton

    return card_of(request.param, monkeypatch)
