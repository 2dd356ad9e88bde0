"""Attention that does not know how queries come: the kernel against the formula, and every cut of a prompt against every other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels.cancelling import same_bits
from inferometer.kernels.invariant_attention import invariant_attention, invariant_attention_triton
from inferometer.kernels.support import Tiles
from inferometer.nn.alibi import slopes as alibi
from interpreted_products import added_in_order

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
ROWS = [(1, 1), (16, 16), (17, 17), (33, 40), (5, 70), (1, 33), (0, 4), (3, 0), (20, 64)]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}
TILES = Tiles(queries=32, block=16, warps=4, stages=1)
SHAPES = [
    pytest.param(2, 2, 64, torch.float16, False, id="alone"),
    pytest.param(3, 3, 16, torch.float32, True, id="small-heads-alibi"),
    pytest.param(2, 2, 80, torch.float16, True, id="padded-head-alibi"),
    pytest.param(4, 2, 96, torch.float32, True, id="grouped-padded-alibi"),
    pytest.param(4, 1, 128, torch.float16, False, id="one-key-head"),
    pytest.param(2, 2, 32, torch.bfloat16, False, id="bfloat16"),
]


def asked(rows: list[tuple[int, int]], heads: int, head_size: int, dtype: torch.dtype, behind: int = 0, seed: int = 1) -> Any:
    """Queries of the rows one after another, with `behind` tokens that are no row's, and where each row begins."""
    bounds = [0]
    for count, _ in rows:
        bounds.append(bounds[-1] + count)
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(bounds[-1] + behind, heads, head_size, generator=draw).to(dtype), bounds


def exact(query: Tensor, bounds: list[int], batch: Any, scale: float, slopes: Tensor | None) -> Tensor:
    out = torch.zeros(query.shape, dtype=torch.float64)
    for row, (start, stop) in enumerate(pairwise(bounds)):
        if len(batch.key[row]):
            out[start:stop] = batch.exact(query[start:stop], row, scale, slopes)
    return out


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    torch.testing.assert_close(got.cpu().double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(("heads", "kv_heads", "head_size", "dtype", "biased"), SHAPES)
def test_both_are_the_formula(
    pages: Any, interpreted: Callable[..., Any], heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, biased: bool
) -> None:
    batch = pages.fill([context for _, context in ROWS], kv_heads, head_size, dtype=dtype)
    query, bounds = asked(ROWS, heads, head_size, dtype, behind=3)
    slopes = torch.tensor(alibi(heads)) if biased else None
    arguments = (query, batch.keys, batch.values, batch.table, batch.seats, torch.tensor(bounds, dtype=torch.int32), batch.contexts)
    want = exact(query, bounds, batch, 0.1, slopes)
    close(invariant_attention(*arguments, page_size=16, scale=0.1, slopes=slopes), want, dtype)
    got = interpreted(invariant_attention_triton, *arguments, page_size=16, scale=0.1, slopes=slopes, tiling=TILES)
    close(got, want, dtype)


CUTS = [[50], [1] * 50, [49, 1], [16, 16, 18], [7, 30, 13], [33, 17]]


def run_cut(run: Callable[..., Tensor], batch: Any, query: Tensor, cut: list[int], company: Tensor, named: dict[str, Any]) -> Tensor:
    """The queries of the first sequence in pieces, each in a sweep with some tokens of the second one."""
    pieces = []
    start = 0
    for number, count in enumerate(cut):
        beside = number % 3 * 5
        there = company[:beside]
        starts = torch.tensor([0, beside, beside + count], dtype=torch.int32, device=query.device)
        seats = batch.seats[[1, 0]]
        contexts = torch.tensor([beside, start + count], dtype=torch.int32, device=query.device)
        got = run(torch.cat((there, query[start : start + count])), batch.keys, batch.values, batch.table, seats, starts, contexts, **named)
        pieces.append(got[beside:])
        start += count
    return torch.cat(pieces)


@pytest.mark.parametrize("biased", [False, True])
def test_no_cut_of_a_prompt_changes_a_bit(pages: Any, interpreted: Callable[..., Any], biased: bool) -> None:
    batch = pages.fill([50, 20], 2, 16)
    query, _ = asked([(50, 50)], 4, 16, torch.float32)
    company = torch.randn(20, 4, 16)
    named = {"page_size": 16, "scale": 0.25, "slopes": torch.tensor(alibi(4)) if biased else None, "tiling": TILES}

    def run(*arguments: Any, **more: Any) -> Any:
        return interpreted(added_in_order, invariant_attention_triton, *arguments, **more)

    whole = run_cut(run, batch, query, CUTS[0], company, named)
    for cut in CUTS[2:]:
        assert same_bits(run_cut(run, batch, query, cut, company, named), whole)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_size", "dtype", "biased"),
    [
        (2, 2, 16, torch.bfloat16, False),
        (3, 3, 64, torch.float16, True),
        (2, 2, 80, torch.bfloat16, True),
        (8, 2, 128, torch.bfloat16, False),
        (2, 2, 128, torch.float32, True),
        (2, 2, 256, torch.bfloat16, False),
        (2, 1, 256, torch.float32, False),
        (6, 1, 128, torch.float16, False),
    ],
)
class TestGpu:
    def test_is_the_formula(self, pages: Any, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, biased: bool) -> None:
        rows = [(150, 150), (1, 1), (70, 200), (3, 0), (0, 5), (128, 129), (1, 300)]
        seed = int(torch.randint(2**31, ()))
        batch = pages.fill([context for _, context in rows], kv_heads, head_size, dtype=dtype, seed=seed, device="cuda")
        query, bounds = asked(rows, heads, head_size, dtype, behind=5, seed=seed)
        slopes = torch.tensor(alibi(heads), device="cuda") if biased else None
        got = invariant_attention(
            query.cuda(),
            batch.keys,
            batch.values,
            batch.table,
            batch.seats,
            torch.tensor(bounds, dtype=torch.int32, device="cuda"),
            batch.contexts,
            page_size=16,
            scale=head_size**-0.5,
            slopes=slopes,
        )
        close(got, exact(query, bounds, batch, head_size**-0.5, slopes), dtype)

    def test_no_cut_of_a_prompt_changes_a_bit(
        self, pages: Any, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype, biased: bool
    ) -> None:
        seed = int(torch.randint(2**31, ()))
        batch = pages.fill([700, 20], kv_heads, head_size, dtype=dtype, seed=seed, device="cuda")
        query, _ = asked([(700, 700)], heads, head_size, dtype, seed=seed)
        query, company = query.cuda(), torch.randn(20, heads, head_size, device="cuda").to(dtype)
        slopes = torch.tensor(alibi(heads), device="cuda") if biased else None
        named = {"page_size": 16, "scale": head_size**-0.5, "slopes": slopes}
        whole = run_cut(invariant_attention, batch, query, [700], company, named)
        for cut in ([1] * 700, [699, 1], [64] * 10 + [60], [13, 200, 1, 1, 485], [350, 350]):
            assert same_bits(run_cut(invariant_attention, batch, query, cut, company, named), whole)
