"""A linear map and what may follow it, on the CPU: torch's operations in torch's order."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from inferometer.kernels.activation import ACTIVATIONS
from inferometer.kernels.norm import NormWeights
from inferometer.model.spec import Activation
from inferometer.nn.linear import Linear
from inferometer.nn.packed import Packed

X = torch.randn(3, 24, generator=torch.Generator().manual_seed(0))


def linear(dtype: torch.dtype = torch.float32) -> Linear:
    made = Linear(24, 16, bias=True).to(dtype)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("added", [False, True])
def test_the_same_bits_as_separate_operations(activation: Activation | None, added: bool, dtype: torch.dtype) -> None:
    made, x = linear(dtype), X.to(dtype)
    residual = torch.ones(3, 16, dtype=dtype) if added else None
    want = functional.linear(x, made.weight, made.bias)
    if activation is not None:
        want = ACTIVATIONS[activation](want)
    if residual is not None:
        want = residual + want
    assert torch.equal(made(x, activation=activation, residual=residual), want)


@pytest.mark.skipif(not Packed.possible(torch.empty(1, 1, dtype=torch.bfloat16)), reason="oneDNN does not pack bfloat16 here")
def test_a_packed_weight_is_followed_by_the_same() -> None:
    made, x = linear(torch.bfloat16), X.bfloat16()
    residual = torch.ones(3, 16).bfloat16()
    made.pack()
    assert torch.equal(made(x, activation="gelu", residual=residual), residual + functional.gelu(made(x)))


def test_a_cpu_leaves_the_residual_to_the_norm() -> None:
    assert linear().launch(X) is None


def test_a_cpu_leaves_the_norm_to_the_norm() -> None:
    assert linear().normed(X[:1], NormWeights("rms", 1e-5, None, None)) is None
