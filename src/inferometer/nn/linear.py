"""Linear maps, and on the CPU their weights in the layout that its matrix instructions read."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from inferometer.kernels.activation import ACTIVATIONS
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_choice import Launches, launch_for
from inferometer.kernels.skinny_launch import Tiling
from inferometer.model.spec import Activation
from inferometer.nn.invariant import Product

_EPILOGUES: Final = ("relu", "gelu_tanh")
"""Activations that the matrix library applies before it writes its result."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How oneDNN has laid a weight out: [blocks of outputs][pairs of inputs][block][2], filled up with zeros.

    address: of its first number. inputs: with those that fill up. block: outputs of a block.
    """

    address: int
    inputs: int
    block: int


class Packed:
    """A bfloat16 weight (outputs, inputs) on the CPU, reordered once by oneDNN instead of in every call.

    1.3 to 1.7 times as fast at any number of rows (2 threads of a Xeon with AMX). float32 is not packed: its matrix-vector product
    would be slower by a third.

    layout: how the numbers lie, for kernels that read them where they are; None where it is none that they know.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self.layout = _layout(self._weight, weight.detach())

    @staticmethod
    def possible(weight: Tensor) -> bool:
        """Whether this build of torch can pack the weight."""
        packable = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
        return packable and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, bias, "none", [], "")
        return out


def _layout(packed: Tensor, weight: Tensor) -> Layout | None:
    """oneDNN says nothing of its layouts: the packed weight is compared with what it was made from, number by number."""
    outputs, inputs = weight.shape
    size = int(torch.ops.mkldnn._nbytes(packed)) // weight.element_size()
    address = int(torch.ops.mkldnn.data_ptr(packed))
    numbers = torch.frombuffer((ctypes.c_char * (size * weight.element_size())).from_address(address), dtype=weight.dtype)
    for block in (32, 64):
        rows = -(-outputs // block) * block
        columns, rest = divmod(size, rows)
        if rest or columns % 2 or columns < inputs:
            continue
        plain = numbers.view(rows // block, columns // 2, block, 2).transpose(1, 2).reshape(rows, columns)
        if torch.equal(plain[:outputs, :inputs].view(torch.int16), weight.view(torch.int16)):
            return Layout(address, columns, block)
    return None


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

    def launch(self, x: Tensor) -> Tiling | None:
        """How a launch of its own computes so few rows, with all that follows; None where torch's operations do."""
        return None if self.packed is not None else launch_for(x, self.weight, self.launches)

    def takes_residual(self, x: Tensor) -> bool:
        """Whether `forward` would add a residual in its own launch."""
        return self.product is not None or self.launch(x) is not None

    def normed(self, x: Tensor, norm: NormWeights, *, activation: Activation | None = None) -> Tensor | None:
        """activation(norm(x) weight^T + bias) in one launch; None where there is none, which is for all but very few rows."""
        launch = self.launch(x) if self.product is None else None
        if launch is None or not launch.whole:
            return None
        return skinny_triton(x, self.weight, self.bias, activation=activation, norm=norm, launch=launch)

    def forward(self, x: Tensor, *, activation: Activation | None = None, residual: Tensor | None = None) -> Tensor:
        """(tokens, inputs) -> (tokens, outputs): activation(x weight^T + bias) + residual."""
        if self.product is not None:
            return self.product(x, activation=activation, residual=residual)
        if self.packed is not None:
            return _finish(self.packed(x, self.bias), activation, residual)
        launch = launch_for(x, self.weight, self.launches)
        if launch is not None:
            return skinny_triton(x, self.weight, self.bias, activation=activation, residual=residual, launch=launch)
        if residual is None and self.bias is not None and x.is_cuda and activation in _EPILOGUES:
            return torch._addmm_activation(self.bias, x, self.weight.T, use_gelu=activation == "gelu_tanh")
        return _finish(functional.linear(x, self.weight, self.bias), activation, residual)


def head_logits(x: Tensor, weight: Tensor, launches: Launches, out: Tensor | None = None) -> Tensor:
    """x weight^T: x (rows, inputs), weight (vocabulary, inputs), result (rows, vocabulary), in `out` if that is given."""
    launch = launch_for(x, weight, launches)
    if launch is not None:
        return skinny_triton(x, weight, launch=launch, out=out)
    if not x.is_cuda:
        return functional.linear(x, weight) if out is None else torch.mm(x, weight.T, out=out)
    return torch.mm(x, weight.T, out=padded_rows(x, weight.shape[0]) if out is None else out)


def padded_rows(like: Tensor, width: int, rows: int | None = None) -> Tensor:
    """(rows, width), uninitialised, whose rows begin at multiples of 128 bytes; as many as `like` has unless told, of its type.

    Whatever the vocabulary, matrix libraries and kernels then store and load 16 bytes at a time: cuBLAS is three times as slow else.
    """
    unit = 128 // like.element_size()
    stride = -(-width // unit) * unit
    return torch.empty(like.shape[0] if rows is None else rows, stride, dtype=like.dtype, device=like.device)[:, :width]


def _finish(out: Tensor, activation: Activation | None, residual: Tensor | None) -> Tensor:
    if activation is not None:
        out = ACTIVATIONS[activation](out)
    return out if residual is None else residual + out
