"""What filters leave: the kernel against its reference, which has tests of its own beside transformers (test_filters)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import token_bounds
from inferometer.kernels.token_bounds import bounds_triton
from inferometer.kernels.token_filters import Filters, bounds_torch
from inferometer.kernels.token_rows import Bounds

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TYPES = [torch.float32, torch.bfloat16, torch.float16]
ASKED = [("top_k",), ("tails",), ("masses",), ("top_k", "tails", "masses")]


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype, seed: int, *, tied: bool) -> Tensor:
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3
    logits = logits.round() if tied else logits
    logits[0, 1] = math.nan
    logits[-1, 2] = math.inf if not tied else -math.inf
    return logits.to(dtype)


def filters_of(rows: int, vocabulary: int, asked: tuple[str, ...], seed: int) -> Filters:
    """The second row asks for nothing."""
    draw = torch.Generator().manual_seed(seed)
    k = torch.randint(1, min(60, vocabulary), (rows,), generator=draw)
    tails, masses = torch.rand(rows, generator=draw), torch.rand(rows, generator=draw)
    k[1:2], tails[1:2], masses[1:2] = 0, -1, 2
    found: dict[str, Any] = {"top_k": k, "tails": tails, "masses": masses}
    kept = {name: values for name, values in found.items() if name in asked}
    return Filters(torch.rand(rows, generator=draw) * 2 + 0.1, largest_k=int(k.max()), **kept)


def clean(logits: Tensor) -> Tensor:
    return logits.float().nan_to_num(nan=-math.inf, posinf=torch.finfo(torch.float32).max)


def small(logits: Tensor, filters: Filters) -> Bounds:
    """The kernel, for whose interpretation its usual block would be no cut at all."""
    token_bounds.BLOCK = 128
    return bounds_triton(logits, filters)


def left_out(kept: Tensor, want: Tensor, logits: Tensor, filters: Filters) -> float:
    """The most probability, of a row, of tokens that one of the two keeps and the other does not."""
    scores = logits.double().nan_to_num(nan=-math.inf, posinf=3e38)
    scores = (scores - scores.amax(1, keepdim=True)) / filters.temperatures.double()[:, None]
    return ((kept != want) * scores.softmax(1)).sum(1).max().item()


@pytest.mark.parametrize(("dtype", "tied"), [(torch.float32, False), (torch.bfloat16, True), (torch.float16, False)])
@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_kernel_keeps_what_the_reference_keeps(
    interpreted: Callable[..., Any], asked: tuple[str, ...], tied: bool, dtype: torch.dtype
) -> None:
    logits = logits_of(3, 150, dtype, 5, tied=tied)
    filters = filters_of(3, 150, asked, 6)
    scores = clean(logits)
    got, want = interpreted(small, logits, filters), bounds_torch(logits, filters)
    assert torch.equal(got.keep(scores), want.keep(scores))
    assert got.keep(scores).any(1).all()
    assert got.keep(scores)[1].all()


@pytest.mark.parametrize("size", [1, 2, 10])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_kernel_at_the_very_edge(interpreted: Callable[..., Any], size: int, share: float) -> None:
    """Equal scores, whose sums come to the share itself; and a row without any."""
    logits = torch.full((2, 40), -math.inf)
    logits[0, 3 : 3 + size] = 0.5
    for filters in (
        Filters(torch.ones(2), tails=torch.full((2,), 1 - share)),
        Filters(torch.ones(2), masses=torch.full((2,), share)),
        Filters(torch.ones(2), torch.tensor([size, size]), size),
    ):
        got, want = interpreted(small, logits, filters), bounds_torch(logits, filters)
        there = logits > -math.inf
        assert torch.equal(got.keep(logits) & there, want.keep(logits) & there)
        assert (got.keep(logits) & there)[0].any()


@pytest.mark.parametrize("temperature", [torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max])
def test_extreme_temperatures_leave_something(interpreted: Callable[..., Any], temperature: float) -> None:
    logits = logits_of(3, 60, torch.float32, 1, tied=False)
    filters = filters_of(3, 60, ASKED[-1], 2)
    filters.temperatures.fill_(temperature)
    for found in (interpreted(small, logits, filters), bounds_torch(logits, filters)):
        assert found.keep(clean(logits)).any(1).all()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 49152), (40, 50258), (3, 250880)])
def test_gpu_keeps_what_the_reference_keeps(rows: int, vocabulary: int, asked: tuple[str, ...], dtype: torch.dtype) -> None:
    """Up to where the rounding of an exponential decides; ties are the rule in sixteen bits."""
    seed = int.from_bytes(os.urandom(3), "big")
    logits, filters = logits_of(rows, vocabulary, dtype, seed, tied=False), filters_of(rows, vocabulary, asked, seed)
    there = Filters(
        filters.temperatures.cuda(), None if filters.top_k is None else filters.top_k.cuda(), filters.largest_k,
        None if filters.tails is None else filters.tails.cuda(), None if filters.masses is None else filters.masses.cuda(),
    )  # fmt: skip
    scores = clean(logits)
    found = bounds_triton(logits.cuda(), there)
    kept = Bounds(found.floors.cpu(), found.last_ids.cpu(), found.ceilings.cpu()).keep(scores)
    want = bounds_torch(logits, filters).keep(scores)
    assert kept.any(1).all()
    if asked == ("top_k",):
        assert torch.equal(kept, want)
    assert left_out(kept, want, logits, filters) < 1e-3
