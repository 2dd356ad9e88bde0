"""Gated activations: the reference and the kernel against the formulas, and against each other where they round."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from inferometer.kernels.gate import gate, gate_torch, gate_triton
from inferometer.model.spec import Activation

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ALL: tuple[Activation, ...] = get_args(Activation)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def formula(x: Tensor, activation: Activation) -> Tensor:
    match activation:
        case "relu":
            return x.clamp(min=0)
        case "relu_squared":
            return x.clamp(min=0) ** 2
        case "gelu":
            return x * (1 + torch.special.erf(x / math.sqrt(2))) / 2
        case "gelu_tanh":
            return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case "gelu_quick":
            return x / (1 + torch.exp(-1.702 * x))
        case "silu":
            return x / (1 + torch.exp(-x))
        case "tanh":
            return torch.tanh(x)
        case "sigmoid":
            return 1 / (1 + torch.exp(-x))
        case "mish":
            return x * torch.tanh(torch.log1p(torch.exp(x)))
        case "leaky_relu":
            return torch.where(x < 0, x / 100, x)
        case "identity":
            return x


def halves(tokens: int, width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Gates from deep in saturation to close to zero."""
    draw = torch.Generator().manual_seed(seed)
    inner = torch.randn(tokens, 2 * width, generator=draw)
    inner[0] *= 10
    inner[-1, :width] *= 0.01
    return inner.to(dtype)


def close(got: Tensor, inner: Tensor, activation: Activation) -> None:
    gating, value = inner.double().chunk(2, 1)
    want = formula(gating, activation) * value
    assert got.dtype == inner.dtype
    assert got.is_contiguous()
    tolerance = TOLERANCE[inner.dtype]
    # Far below zero what is left of 1 - 1 is multiplied by large values; close to zero nothing excuses an error.
    torch.testing.assert_close(got.cpu().double(), want, atol=5 * tolerance, rtol=tolerance)
    torch.testing.assert_close(got.cpu().double()[-1], want[-1], atol=tolerance / 1000, rtol=tolerance)


@pytest.mark.parametrize("activation", ALL)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_reference_is_the_formula(activation: Activation, dtype: torch.dtype) -> None:
    inner = halves(5, 48, dtype)
    close(gate(inner, activation), inner, activation)


@pytest.mark.parametrize("activation", ALL)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_kernel_is_the_formula(interpreted: Callable[..., Any], activation: Activation, dtype: torch.dtype) -> None:
    inner = halves(5, 80, dtype)
    close(interpreted(gate_triton, inner, activation), inner, activation)


@pytest.mark.parametrize("width", [1, 1024, 2600])
def test_kernel_of_any_width(interpreted: Callable[..., Any], width: int) -> None:
    inner = halves(3, width, torch.float32)
    close(interpreted(gate_triton, inner, "silu"), inner, "silu")


@pytest.mark.parametrize("activation", ALL)
def test_kernel_rounds_where_torch_does(interpreted: Callable[..., Any], activation: Activation) -> None:
    inner = halves(4, 500, torch.float16)
    got, want = interpreted(gate_triton, inner, activation), gate_torch(inner, activation)
    assert (got == want).float().mean() > 0.98  # the last bit of a function in float32 may round another way


def test_nan_stays(interpreted: Callable[..., Any]) -> None:
    inner = torch.tensor([[torch.nan, 1.0, 2.0, torch.nan]])
    for activation in ALL:
        assert interpreted(gate_triton, inner, activation).isnan().all(), activation


def test_no_rows(interpreted: Callable[..., Any]) -> None:
    assert interpreted(gate_triton, torch.empty(0, 64), "silu").shape == (0, 32)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("activation", ALL)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [17, 5632, 11008])
def test_gpu_is_the_formula(activation: Activation, dtype: torch.dtype, width: int) -> None:
    inner = halves(7, width, dtype, seed=int(torch.randint(2**31, ())))
    close(gate(inner.cuda(), activation), inner, activation)
