"""Linear maps."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from inferometer.kernels.finish import finish_torch
from inferometer.kernels.head_parts import HeadParts
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.quant_choice import multiplies, quant_launch_for, quant_many
from inferometer.kernels.quant_linear import quant_linear_joined, quant_linear_triton
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.quant_widened import widened
from inferometer.kernels.skinny import skinny_joined, skinny_triton
from inferometer.kernels.skinny_choice import DTYPES, Launches, launch_for
from inferometer.kernels.skinny_launch import Tiling
from inferometer.kernels.support import usable
from inferometer.model.spec import Activation
from inferometer.nn.formats.product import multiply, rounded_rows
from inferometer.nn.invariant import Product
from inferometer.nn.packed import Packed

_EPILOGUES: Final = ("relu", "gelu_tanh")
"""Activations that the matrix library applies before it writes its result."""


class Linear(nn.Module):
    """A linear map whose weight is (outputs, inputs); left uninitialised for the loader.

    launches: how few rows are computed on a GPU, where that has been measured (`engine/tuning.py`).
    quant: the weight in few bits, of which `weight` is then only the shape.
    product: what computes every row in the same way, in a model of invariant numerics.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False) if bias else None
        self.packed: Packed | None = None
        self.quant: QuantWeight | None = None
        self.launches: Launches = {}
        self.product: Product | None = None

    def pack(self) -> None:
        """Replaces the weight by its packed form, where that is possible: no second copy is kept, `weight` is left a shape."""
        if self.quant is None and Packed.possible(self.weight):
            self.packed = Packed(self.weight)
            self.weight = nn.Parameter(self.weight.to("meta"), requires_grad=False)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight, as it is stored."""
        return self.weight.nbytes if self.quant is None else self.quant.nbytes

    def launch(self, x: Tensor) -> Tiling | None:
        """How a launch of its own computes so few rows, with all that follows; None where torch's operations do."""
        if self.quant is not None:
            return quant_launch_for(x, self.quant, self.launches)
        return None if self.packed is not None else launch_for(x, self.weight, self.launches)

    def takes_residual(self, x: Tensor) -> bool:
        """Whether `forward` would add a residual in its own launch."""
        return self.product is not None or self.launch(x) is not None

    def norms(self, x: Tensor) -> bool:
        """Whether `normed` would norm x in its own launch, which it does for very few rows."""
        return self._norming(x) is not None

    def _norming(self, x: Tensor) -> Tiling | None:
        """The launch of x if it sees whole rows, in the order of memory."""
        launch = self.launch(x) if self.product is None else None
        ordered = self.quant is not None and self.quant.order is not None
        return None if launch is None or not (launch.whole or launch.readied) or ordered else launch

    def normed(self, x: Tensor, norm: NormWeights, *, activation: Activation | None = None) -> Tensor | None:
        """activation(norm(x) weight^T + bias) in one launch; None where there is none, which is for all but very few rows."""
        launch = self._norming(x)
        if launch is None:
            return None
        if self.quant is not None:
            return quant_linear_triton(x, self.quant, self.bias, activation=activation, norm=norm, launch=launch)
        return skinny_triton(x, self.weight, self.bias, activation=activation, norm=norm, launch=launch)

    def joins(self, x: Tensor) -> bool:
        """Whether `joined` computes as many rows as x has, of this type and device."""
        launch = self._norming(x) if x.shape[0] == 1 else None
        return launch is not None and launch.whole

    def joined(self, parts: HeadParts, residual: Tensor) -> Tensor:
        """attention weight^T + bias + residual of a row of attention that is still in parts; only where `joins`. residual: (1, outputs)."""
        launch = self._norming(residual)
        assert launch is not None
        if self.quant is not None:
            return quant_linear_joined(parts, self.quant, self.bias, residual, launch)
        return skinny_joined(parts, self.weight, self.bias, residual, launch)

    def forward(self, x: Tensor, *, activation: Activation | None = None, residual: Tensor | None = None) -> Tensor:
        """(tokens, inputs) -> (tokens, outputs): activation(x weight^T + bias) + residual."""
        if self.product is not None:
            return self.product(x, activation=activation, residual=residual)
        if self.quant is not None:
            return self._quantised(x, self.quant, activation, residual)
        if self.packed is not None:
            return finish_torch(self.packed(x, self.bias), activation, residual)
        launch = self.launch(x)
        if launch is not None:
            return skinny_triton(x, self.weight, self.bias, activation=activation, residual=residual, launch=launch)
        return self._library(x, self.weight, activation, residual)

    def _quantised(self, x: Tensor, quant: QuantWeight, activation: Activation | None, residual: Tensor | None) -> Tensor:
        launch = self.launch(x)
        if launch is not None:
            return quant_linear_triton(x, quant, self.bias, activation=activation, residual=residual, launch=launch)
        if not usable(x.device):
            return finish_torch(multiply(x, quant, self.bias), activation, residual)
        if x.dtype in DTYPES and multiplies(quant.activations, x.device):
            return quant_many(x, quant, self.bias, activation=activation, residual=residual)
        return self._library(rounded_rows(x, quant), widened(quant, x.dtype), activation, residual)

    def _library(self, x: Tensor, weight: Tensor, activation: Activation | None, residual: Tensor | None) -> Tensor:
        if residual is None and self.bias is not None and x.is_cuda and activation in _EPILOGUES:
            return torch._addmm_activation(self.bias, x, weight.T, use_gelu=activation == "gelu_tanh")
        return finish_torch(functional.linear(x, weight, self.bias), activation, residual)
