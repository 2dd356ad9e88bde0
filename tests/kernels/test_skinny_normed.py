"""Linear maps that norm their few rows first."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels import skinny
from inferometer.kernels.norm import NormWeights, norm_torch
from inferometer.kernels.skinny_launch import Tiling, candidates
from inferometer.model.spec import NormKind

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = Tiling(outputs=16, block=64, warps=4, stages=1, programs=3, whole=True)
SINGLE = Tiling(outputs=1, block=64, warps=4, stages=1, programs=64, whole=True)


def drawn(seed: int, *shape: int, mean: float = 0, scale: float = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale + mean).to(dtype)


def norm_of(kind: NormKind, hidden: int, dtype: torch.dtype, weights: str = "both") -> NormWeights:
    weight = drawn(7, hidden, mean=1, scale=0.3, dtype=dtype) if weights != "none" else None
    bias = drawn(8, hidden, scale=0.3, dtype=dtype) if weights == "both" and kind == "layer" else None
    return NormWeights(kind, 1e-5, weight, bias)


def wanted(x: Tensor, norm: NormWeights, weight: Tensor, bias: Tensor | None) -> Tensor:
    """float64 from the normed rows as they are rounded on their way."""
    rows = norm_torch(x.float(), kind=norm.kind, epsilon=norm.epsilon, weight=_float(norm.weight), bias=_float(norm.bias)).to(x.dtype)
    return rows.double() @ weight.double().T + (0 if bias is None else bias.double())


def _float(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else weights.float()


def close(got: Tensor, want: Tensor) -> None:
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


# Every number of rows with all weights, fewer weights and another type with the one that is no power of two.
@pytest.mark.parametrize(
    ("rows", "weights", "dtype"),
    [
        *((rows, "both", torch.float32) for rows in (1, 2, 3, 4)),
        *((3, weights, torch.float16) for weights in ("both", "weight", "none")),
        *((3, weights, torch.float32) for weights in ("weight", "none")),
    ],
)
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_kernel_is_the_norm_and_the_formula(
    interpreted: Callable[..., Any], rows: int, kind: NormKind, weights: str, dtype: torch.dtype
) -> None:
    for outputs, inputs, launch in ((33, 50, SMALL), (5, 64, SINGLE)):
        x, weight, bias = (
            drawn(1, rows, inputs, mean=3, dtype=dtype),
            drawn(2, outputs, inputs, scale=inputs**-0.5, dtype=dtype),
            drawn(3, outputs, dtype=dtype),
        )
        norm = norm_of(kind, inputs, dtype, weights)
        got = interpreted(skinny.skinny_triton, x, weight, bias, norm=norm, launch=launch)
        close(got, wanted(x, norm, weight, bias))


def test_the_result_goes_where_it_is_wanted(interpreted: Callable[..., Any]) -> None:
    for rows in (1, 3):
        got = interpreted(placed, drawn(1, rows, 32), drawn(2, 20, 32))
        torch.testing.assert_close(got[:, :20], drawn(1, rows, 32) @ drawn(2, 20, 32).T, atol=1e-5, rtol=1e-5)
        assert got[:, 20:].isnan().all()


def placed(x: Tensor, weight: Tensor) -> Tensor:
    room = torch.full((x.shape[0], 24), torch.nan)
    skinny.skinny_triton(x, weight, launch=SMALL, out=room[:, :20])
    return room


def test_a_mean_far_from_zero_costs_no_digits(interpreted: Callable[..., Any]) -> None:
    """Sums of squares would lose them."""
    x, weight = drawn(1, 3, 64, mean=1000), drawn(2, 16, 64)
    norm = NormWeights("layer", 1e-5, None, None)
    got = interpreted(skinny.skinny_triton, x, weight, norm=norm, launch=SMALL)
    torch.testing.assert_close(got.double(), wanted(x.double(), norm, weight, None), atol=5e-3, rtol=1e-3)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize(("outputs", "inputs"), [(6144, 2048), (1000, 4096), (2304, 768), (7680, 2560), (576, 5120), (50, 50)])
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_gpu_is_the_norm_and_the_formula(rows: int, outputs: int, inputs: int, kind: NormKind, dtype: torch.dtype) -> None:
    """Every launch that may be chosen."""
    seed = int.from_bytes(os.urandom(3), "big")
    x = drawn(seed, rows, inputs, mean=2, dtype=dtype).cuda()
    weight, bias = drawn(seed + 1, outputs, inputs, scale=inputs**-0.5, dtype=dtype).cuda(), drawn(seed + 2, outputs, dtype=dtype).cuda()
    norm = norm_of(kind, inputs, dtype)
    norm = NormWeights(norm.kind, norm.epsilon, *(None if each is None else each.cuda() for each in (norm.weight, norm.bias)))
    for launch in candidates(rows, inputs):
        if not launch.whole:
            continue
        first = skinny.skinny_triton(x, weight, bias, norm=norm, launch=launch)
        close(first, wanted(x, norm, weight, bias))
        assert torch.equal(first, skinny.skinny_triton(x, weight, bias, norm=norm, launch=launch)), launch
