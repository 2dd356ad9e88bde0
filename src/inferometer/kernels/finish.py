"""What follows a matrix product in the same launch."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from inferometer.kernels.activation import ACTIVATIONS, activate
from inferometer.kernels.support import constexpr, kernel, tl
from inferometer.model.spec import Activation


def finish_torch(out: Tensor, activation: Activation | None, residual: Tensor | None) -> Tensor:
    """activation(out) + residual: torch's operations, one after another."""
    if activation is not None:
        out = ACTIVATIONS[activation](out)
    return out if residual is None else residual + out


def linear_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: Activation | None = None, residual: Tensor | None = None
) -> Tensor:
    """The reference of launches that end so: x (rows, inputs), weight (outputs, inputs), residual and result (rows, outputs)."""
    return finish_torch(functional.linear(x, weight, bias), activation, residual)


@kernel()
def finish(
    value: Any, bias: Any, residual: Any, real: Any, activation: constexpr, biased: constexpr, added: constexpr, dtype: constexpr,
) -> Any:  # fmt: skip
    """What follows the product, rounded after each step as separate operations would. bias, residual: addresses like `value`."""
    shift, beside = value, value
    if biased:
        shift = tl.load(bias, mask=real, other=0)
    if added:
        beside = tl.load(residual, mask=real, other=0)
    return finished(value, shift, beside, activation, biased, added, dtype)


@kernel()
def finished(
    value: Any, bias: Any, residual: Any, activation: constexpr, biased: constexpr, added: constexpr, dtype: constexpr,
) -> Any:  # fmt: skip
    """As `finish`, of numbers that have been loaded."""
    if biased:
        value += bias.to(tl.float32)
    value = value.to(dtype)
    if activation is not None:
        value = activate(value.to(tl.float32), activation, dtype).to(dtype)
    if added:
        value = (residual.to(tl.float32) + value.to(tl.float32)).to(dtype)
    return value
