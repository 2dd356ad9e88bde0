"""Activations: torch's operations, and the same with the same roundings inside a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.support import constexpr, kernel, tl
from inferometer.model.spec import Activation


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def _relu_squared(x: Tensor) -> Tensor:
    return functional.relu(x).square()


def _gelu_quick(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "relu_squared": _relu_squared,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_quick": _gelu_quick,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": functional.mish,
    "leaky_relu": functional.leaky_relu,
    "identity": _identity,
}


@kernel()
def _tanh(x: Any) -> Any:
    """Written out, since Triton's interpreter cannot call CUDA's. Near zero, where 1 - 1 would be left of the formula, by its series."""
    square = x * x
    series = x * (1 - square * (0.333333333 - square * (0.133333333 - square * 0.0539682540)))
    size = tl.exp(-2 * tl.abs(x))
    far = (1 - size) / (1 + size)
    return tl.where(tl.abs(x) < 0.2, series, tl.where(x < 0, -far, far))


@kernel()
def activate(x: Any, kind: constexpr, dtype: constexpr) -> Any:
    """float32 values of `dtype`, mapped as ACTIVATIONS[kind] maps a tensor of that type, not yet rounded back to it.

    Torch computes in float32 and rounds what each of its operations returns; where an activation is made of several, so does this.
    """
    y = x
    if kind == "relu":
        # Not a maximum: that would turn NaN into 0.
        y = tl.where(x < 0, 0.0, x)
    elif kind == "relu_squared":
        y = tl.where(x < 0, 0.0, x)
        y = y * y
    elif kind == "gelu":
        y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif kind == "gelu_tanh":
        y = 0.5 * x * (1 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif kind == "gelu_quick":
        scaled = (1.702 * x).to(dtype).to(tl.float32)
        y = x * (1 / (1 + tl.exp(-scaled))).to(dtype).to(tl.float32)
    elif kind == "silu":
        y = x / (1 + tl.exp(-x))
    elif kind == "tanh":
        y = _tanh(x)
    elif kind == "sigmoid":
        y = 1 / (1 + tl.exp(-x))
    elif kind == "mish":
        # tanh(log(1 + e^x)); beyond 20 it is 1 in float32, long before e^x is too large for it.
        grown = tl.exp(tl.where(x > 20, 20.0, x))
        grown = grown * (grown + 2)
        y = x * (grown / (grown + 2))
    elif kind == "leaky_relu":
        y = tl.where(x < 0, 0.01 * x, x)
    return y
