"""The best token over ranks that each have a part of the vocabulary: that of all logits together, wherever they are cut."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferometer.kernels import rank_peaks
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_peaks import (
    choose_among,
    choose_among_torch,
    choose_among_triton,
    product_peaks,
    row_peaks,
    row_peaks_torch,
    row_peaks_triton,
)
from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_launch import Tiling
from inferometer.kernels.token_choice import choose_torch
from inferometer.kernels.token_rows import Places

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CPU = torch.device("cpu")
BLOCKS = Tiling(outputs=16, block=32, warps=4, stages=2)
WHOLE = Tiling(outputs=4, block=64, warps=4, stages=1, programs=3, whole=True)


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """With equal ones, and rows that hold infinities, NaN and nothing else."""
    draw = torch.Generator().manual_seed(rows + vocabulary)
    logits = (torch.randn(rows, vocabulary, generator=draw) * 4).to(dtype)
    logits[:, vocabulary // 2 :] = logits[:, : vocabulary - vocabulary // 2].clone()
    if rows > 3:
        logits[1], logits[2, vocabulary - 1], logits[3, 0] = math.nan, math.inf, -math.inf
    return logits


def check(places: Places, logits: Tensor) -> None:
    want = Places.on(CPU, len(logits))
    choose_torch(logits.cpu(), want)
    assert torch.equal(places.token_ids.cpu(), want.token_ids)
    torch.testing.assert_close(places.logprobs.cpu(), want.logprobs, atol=4e-6, rtol=4e-6)


def chosen(logits: Tensor, cuts: Sequence[int], peaks: Callable[..., Tensor], among: Callable[..., None]) -> Places:
    """As ranks would with the vocabulary cut at these places."""
    edges = [0, *cuts, logits.shape[1]]
    parts = [peaks(logits[:, first:last], first) for first, last in pairwise(edges)]
    places = Places.on(logits.device, len(logits))
    among(torch.cat(parts, 1), places)
    return places


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 60), st.lists(st.integers(0, 60), max_size=5))
def test_any_cut_gives_the_token_of_the_whole(rows: int, vocabulary: int, cuts: list[int]) -> None:
    logits = logits_of(rows, vocabulary)
    check(chosen(logits, sorted(min(cut, vocabulary) for cut in cuts), row_peaks, choose_among), logits)


def test_by_hand() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [math.nan, -math.inf, -math.inf, -math.inf]])
    peaks = row_peaks(logits[:, 1:], 7)
    assert peaks[:, 1].tolist()[0] == 7
    real = peaks.view(torch.float32)
    assert real[0, 0] == 3.0
    assert real[0, 2] == pytest.approx(2 + math.exp(-3))
    assert (real[1, 0], real[1, 2]) == (-math.inf, 0.0)
    assert row_peaks(logits[:, :0], 4).view(torch.float32)[:, 0].tolist() == [-math.inf, -math.inf]


def test_a_row_of_peaks_depends_on_that_row_alone() -> None:
    logits = logits_of(40, 9000)
    together = row_peaks(logits, 3)
    assert torch.equal(torch.cat([row_peaks(row[None], 3) for row in logits]), together)


def seated(logits: Tensor, cuts: Sequence[int]) -> tuple[Places, Tensor | None]:
    rows, edges = len(logits), [0, *cuts, logits.shape[1]]
    places = Places.on(logits.device, rows).seated(torch.arange(rows) + 1, torch.zeros(rows + 1, dtype=torch.int64))
    parts = [row_peaks_triton(logits[:, first:last], first) for first, last in pairwise(edges)]
    choose_among_triton(torch.cat(parts, 1), places)
    return places, places.newest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "vocabulary", "cuts"), [(1, 50, (13,)), (5, 4097, (4096,)), (4, 9000, (2, 5000, 8999))])
def test_kernels_choose_as_the_reference(
    interpreted: Callable[..., Any], rows: int, vocabulary: int, cuts: tuple[int, ...], dtype: torch.dtype
) -> None:
    logits = logits_of(rows, vocabulary, dtype)
    places, newest = interpreted(seated, logits, cuts)
    check(places, logits)
    assert newest.tolist() == [0, *places.token_ids.tolist()]
    check(chosen(logits, cuts, row_peaks_torch, choose_among_torch), logits)


def few_at_once(logits: Tensor, cuts: Sequence[int]) -> tuple[Places, Tensor | None]:
    rank_peaks.BLOCK, rank_peaks.PARTS = 16, 8
    return seated(logits, cuts)


def test_more_parts_than_are_looked_at_together(interpreted: Callable[..., Any]) -> None:
    logits = logits_of(4, 700)
    check(interpreted(few_at_once, logits, (300,))[0], logits)


def product(x: Tensor, weight: Tensor, launch: Tiling, norm: NormWeights | None) -> tuple[Places, Tensor]:
    """Two ranks, and the logits of the same launches."""
    cut, places = 70, Places.on(x.device, len(x))
    parts = [product_peaks(x, weight[:cut], 0, launch, norm), product_peaks(x, weight[cut:], cut, launch, norm)]
    choose_among_triton(torch.cat(parts, 1), places)
    if norm is not None and not launch.whole:
        x, norm = norm.of(x), None
    return places, torch.cat([skinny_triton(x, part, launch=launch, norm=norm) for part in (weight[:cut], weight[cut:])], 1)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("launch", [BLOCKS, WHOLE], ids=["blocks", "whole"])
@pytest.mark.parametrize("rows", [1, 3])
def test_peaks_of_a_product_are_those_of_its_logits(interpreted: Callable[..., Any], rows: int, launch: Tiling, normed: bool) -> None:
    draw = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 64, generator=draw), torch.randn(150, 64, generator=draw) / 4
    weight[75:] = weight[:75].clone()
    norm = NormWeights("rms", 1e-5, torch.ones(64), None) if normed else None
    check(*interpreted(product, x, weight, launch, norm))


def test_no_rows_are_none() -> None:
    empty = Places.on(CPU, 0)
    choose_among_triton(torch.empty(0, 6, dtype=torch.int32), empty)
    assert row_peaks_triton(torch.empty(0, 9), 0).shape == (0, 3)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpu_chooses_as_the_reference(rows: int, dtype: torch.dtype) -> None:
    logits = logits_of(rows, 50258, dtype).cuda()
    check(chosen(logits, (25129,), row_peaks, choose_among), logits)
    if rows <= 4:
        x, weight = torch.randn(rows, 768, device="cuda").to(dtype), torch.randn(150, 768, device="cuda").to(dtype) / 8
        check(*product(x, weight, replace(BLOCKS, block=64), None))
