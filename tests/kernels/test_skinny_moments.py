"""Moments of rows: left by the map that writes them, taken by the map that norms them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels.head_choice import choose_best_triton
from inferometer.kernels.moments import Moments
from inferometer.kernels.norm import NormWeights, norm_torch
from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_launch import Tiling, candidates
from inferometer.kernels.token_rows import Places
from inferometer.model.spec import NormKind

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
UNCUT = Tiling(outputs=16, block=32, warps=4, stages=2)
CUT = Tiling(outputs=16, block=16, warps=4, stages=2, programs=64)


def drawn(seed: int, *shape: int, mean: float = 0, scale: float = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale + mean).to(dtype)


def norm_of(kind: NormKind, hidden: int, dtype: torch.dtype, weights: str = "both") -> NormWeights:
    weight = drawn(7, hidden, mean=1, scale=0.3, dtype=dtype) if weights != "none" else None
    bias = drawn(8, hidden, scale=0.3, dtype=dtype) if weights == "both" and kind == "layer" else None
    return NormWeights(kind, 1e-5, weight, bias)


def wanted(x: Tensor, norm: NormWeights, weight: Tensor) -> Tensor:
    """float64 from the normed rows as they are rounded on their way."""
    floats = (None if each is None else each.float() for each in (norm.weight, norm.bias))
    factor, shift = floats
    rows = norm_torch(x.float(), kind=norm.kind, epsilon=norm.epsilon, weight=factor, bias=shift).to(x.dtype)
    return rows.double() @ weight.double().T


def moments_of(x: Tensor, span: int) -> Moments:
    """In float64, rounded once."""
    parts = [x.double()[:, i : i + span] for i in range(0, x.shape[1], span)]
    means = torch.stack([part.mean(1) for part in parts], 1)
    squares = torch.stack([((part - part.mean(1, keepdim=True)) ** 2).sum(1) for part in parts], 1)
    return Moments(means.float(), squares.float(), span)


def added(x: Tensor, weight: Tensor, residual: Tensor, launch: Tiling) -> tuple[Tensor, Moments]:
    """A map that adds, and the moments that it leaves."""
    moments = Moments.of(x.shape[0], weight.shape[0], launch.outputs, x.device)
    for room in (moments.means, moments.squares):
        room.fill_(torch.nan)
    return skinny_triton(x, weight, residual=residual, launch=launch, moments=moments), moments


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("outputs", [33, 64])
@pytest.mark.parametrize("launch", [UNCUT, CUT, replace(CUT, outputs=32)])
def test_a_map_leaves_the_moments_of_what_it_writes(interpreted: Callable[..., Any], launch: Tiling, outputs: int, dtype: torch.dtype) -> None:
    x, weight, residual = drawn(1, 5, 48, dtype=dtype), drawn(2, outputs, 48, dtype=dtype), drawn(3, 5, outputs, mean=40, dtype=dtype)
    got, moments = interpreted(added, x, weight, residual, launch)
    exact = moments_of(got, launch.outputs)
    assert moments.span == launch.outputs
    torch.testing.assert_close(moments.means, exact.means, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(moments.squares, exact.squares, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("weights", ["both", "weight", "none"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("span", [16, 24])
def test_a_map_norms_by_the_moments_of_its_rows(
    interpreted: Callable[..., Any], span: int, kind: NormKind, weights: str, dtype: torch.dtype
) -> None:
    for inputs, launch in ((50, UNCUT), (64, CUT)):
        x, weight = drawn(1, 5, inputs, mean=3, dtype=dtype), drawn(2, 33, inputs, scale=inputs**-0.5, dtype=dtype)
        norm = replace(norm_of(kind, inputs, dtype, weights), moments=moments_of(x, span))
        got = interpreted(skinny_triton, x, weight, norm=norm, launch=launch)
        torch.testing.assert_close(got.double(), wanted(x, norm, weight), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_mean_far_from_zero_costs_no_digits(interpreted: Callable[..., Any]) -> None:
    """Sums of squares would lose them."""
    x, weight = drawn(1, 6, 64, mean=1000), drawn(2, 16, 64)
    norm = NormWeights("layer", 1e-5, None, None, moments_of(x, 16))
    got = interpreted(skinny_triton, x, weight, norm=norm, launch=UNCUT)
    torch.testing.assert_close(got.double(), wanted(x.double(), norm, weight), atol=5e-3, rtol=1e-3)


def test_the_head_norms_by_moments_too(interpreted: Callable[..., Any]) -> None:
    x, weight = drawn(1, 6, 64, mean=1), drawn(2, 70, 64)
    norm = replace(norm_of("layer", 64, torch.float32), moments=moments_of(x, 16))
    tokens = interpreted(best_of, x, weight, norm)
    assert torch.equal(tokens, wanted(x, norm, weight).argmax(1))


def best_of(x: Tensor, weight: Tensor, norm: NormWeights) -> Tensor:
    places = Places.on(x.device, x.shape[0])
    choose_best_triton(x, weight, places, UNCUT, norm)
    return places.token_ids


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize(("outputs", "hidden"), [(6144, 2048), (1000, 4096), (2304, 768), (7680, 2560)])
@pytest.mark.parametrize("rows", [2, 4, 7, 16, 32])
def test_gpu_is_the_sum_the_norm_and_the_formula(rows: int, outputs: int, hidden: int, kind: NormKind, dtype: torch.dtype) -> None:
    """Every launch that may be chosen, behind every other that may be."""
    seed = int.from_bytes(os.urandom(3), "big")
    x, residual = drawn(seed, rows, hidden, dtype=dtype).cuda(), drawn(seed + 1, rows, hidden, mean=2, dtype=dtype).cuda()
    first, second = (
        drawn(seed + 2 + i, size, hidden, scale=hidden**-0.5, dtype=dtype).cuda() for i, size in enumerate((hidden, outputs))
    )
    plain = norm_of(kind, hidden, dtype)
    plain = NormWeights(kind, plain.epsilon, *(None if each is None else each.cuda() for each in (plain.weight, plain.bias)))
    launches = [launch for launch in candidates(rows, hidden) if not launch.whole]
    for i, launch in enumerate(launches):
        whole, moments = added(x, first, residual, launch)
        exact = x.double() @ first.double().T + residual.double()
        torch.testing.assert_close(whole.double(), exact, atol=4 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        norm = replace(plain, moments=moments)
        taker = launches[(i + 1) % len(launches)]
        got = skinny_triton(whole, second, norm=norm, launch=taker)
        torch.testing.assert_close(got.double(), wanted(whole, norm, second), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert torch.equal(got, skinny_triton(whole, second, norm=norm, launch=taker)), (launch, taker)
