"""Linear maps, and on the CPU their weights in the layout that its matrix instructions read."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from inferometer.kernels.activation import ACTIVATIONS
from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_choice import Launches, launch_for
from inferometer.model.spec import Activation
from inferometer.nn.invariant import Product


class Packed:
    """A bfloat16 weight (outputs, inputs) on the CPU, reordered once by oneDNN instead of in every call.

    1.3 to 1.7 times as fast at any number of rows (2 threads of a Xeon with AMX). float32 is not packed: its matrix-vector product
    would be slower by a third.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())

    @staticmethod
    def possible(weight: Tensor) -> bool:
        """Whether this build of torch can pack the weight."""
        packable = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
        return packable and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, bias, "none", [], "")
        return out


class Linear(nn.Module):
    """A linear map whose weight is (outputs, inputs); left uninitialised for the loader.

    launches: how few rows are computed on a GPU, where that has been measured (`engine/tuning.py`).
    product: what computes every row in the same way, in a model of invariant numerics.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False) if bias else None
        self.packed: Packed | None = None
        self.launches: Launches = {}
        self.product: Product | None = None

    def pack(self) -> None:
        """Replaces the weight by its packed form, where that is possible: no second copy is kept, `weight` is left a shape."""
        if Packed.possible(self.weight):
            self.packed = Packed(self.weight)
            self.weight = nn.Parameter(self.weight.to("meta"), requires_grad=False)

    def takes_residual(self, x: Tensor) -> bool:
        """Whether `forward` would add a residual in its own launch."""
        return self.product is not None or (self.packed is None and launch_for(x, self.weight, self.launches) is not None)

    def forward(self, x: Tensor, *, activation: Activation | None = None, residual: Tensor | None = None) -> Tensor:
        """(tokens, inputs) -> (tokens, outputs): activation(x weight^T + bias) + residual."""
        if self.product is not None:
            return self.product(x, activation=activation, residual=residual)
        if self.packed is not None:
            return _finish(self.packed(x, self.bias), activation, residual)
        return project(x, self.weight, self.bias, activation=activation, residual=residual, launches=self.launches)


def project(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    launches: Launches = MappingProxyType({}),
) -> Tensor:
    """activation(x weight^T + bias) + residual: x (rows, inputs), weight (outputs, inputs), residual and result (rows, outputs).

    Few rows on a GPU take one launch of a kernel of this package where `launches` has one for them; else torch's operations, one
    after another.
    """
    launch = launch_for(x, weight, launches)
    if launch is not None:
        return skinny_triton(x, weight, bias, activation=activation, residual=residual, launch=launch)
    return _finish(functional.linear(x, weight, bias), activation, residual)


def _finish(out: Tensor, activation: Activation | None, residual: Tensor | None) -> Tensor:
    if activation is not None:
        out = ACTIVATIONS[activation](out)
    return out if residual is None else residual + out
