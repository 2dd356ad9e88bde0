"""Linear maps whose every row has the same bits in any company, and why all else that a token passes through has, too.

On a GPU kernels sum in one order for every number of rows (`kernels/invariant_linear.py`, `kernels/invariant_attention.py`); the
others (norms, rotation, gates) take row by row or element by element anyway.

On the CPU a call into a library gives the same bits for the same shapes, on memory that is equally aligned. So a call either sees one
token alone, or a block of a fixed number of rows, padded with zeros, in which a row's place does not matter. That last is not taken for
granted: it is tried on every weight's shape, and so is which other sizes of blocks give the same bits (`agreeing_sizes`); where nothing
but one row at a time is safe, one row at a time it is. Attention is one call a token (`nn/invariant_attention.py`). Norms, softmax,
rotation and tables need no care there: torch takes them row by row, or by elements with one routine for all. Activations do: of what
does not fill the last vector, torch computes some with another routine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from inferometer.kernels.activation import ACTIVATIONS
from inferometer.kernels.gate import gate, gate_torch
from inferometer.kernels.invariant_linear import Form, agreeing_forms, invariant_linear_triton
from inferometer.model.spec import Activation

Multiply = Callable[[Tensor], Tensor]
"""x (rows, inputs) -> x weight^T + bias, (rows, outputs)."""

STANDARD = 16
"""Rows of the block that all others must agree with: what a float32 product costs hardly more than its weight's way from memory for."""
SIZES = (1, STANDARD, 32, 64, 128)
ALIGNMENT = 64
"""Bytes: a cache line and the widest vector, as torch allocates."""


class Product(Protocol):
    """A linear map and what follows it, the same bits for a row in any company."""

    def __call__(self, x: Tensor, *, activation: Activation | None = None, residual: Tensor | None = None) -> Tensor:
        """activation(x weight^T + bias) + residual, (rows, outputs)."""
        ...

    def gate(self, inner: Tensor, activation: Activation) -> Tensor:
        """activation(inner[:, :width]) * inner[:, width:] of (rows, 2 * width)."""
        ...


@dataclass(frozen=True, slots=True)
class KernelProduct:
    """On a GPU. forms: of the kernel, all of which agree."""

    weight: Tensor
    bias: Tensor | None
    forms: tuple[Form, ...]

    def __call__(self, x: Tensor, *, activation: Activation | None = None, residual: Tensor | None = None) -> Tensor:
        return invariant_linear_triton(x, self.weight, self.bias, activation=activation, residual=residual, among=self.forms)

    def gate(self, inner: Tensor, activation: Activation) -> Tensor:
        return gate(inner, activation)


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """On the CPU. sizes: of blocks that agree, ascending."""

    multiply: Multiply
    sizes: tuple[int, ...]

    def __call__(self, x: Tensor, *, activation: Activation | None = None, residual: Tensor | None = None) -> Tensor:
        out = self._product(x)
        if activation is not None:
            out = _each(ACTIVATIONS[activation], out)
        return out if residual is None else residual + out

    def gate(self, inner: Tensor, activation: Activation) -> Tensor:
        return _each(lambda row: gate_torch(row, activation), inner)

    def _product(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows == 0:
            return self.multiply(x)
        parts = []
        start = 0
        while start < rows:
            size = next((size for size in self.sizes if size >= rows - start), self.sizes[-1])
            parts.append(self.multiply(_block(x[start : start + size], size))[: rows - start])
            start += size
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def agreeing_sizes(multiply: Multiply, inputs: int, dtype: torch.dtype) -> tuple[int, ...]:
    """The sizes of blocks in which every place gives a row the bits that every place of a block of STANDARD rows gives it.

    Tried on random rows; (1,) if the places of that block differ already.
    """
    draw = torch.Generator().manual_seed(inputs)
    agreed = list(SIZES)
    for row in torch.randn(2, inputs, generator=draw).to(dtype):
        wanted = multiply(_block(row.expand(STANDARD, -1), STANDARD))
        if not _alike(wanted, wanted[:1]):
            return (1,)
        agreed = [size for size in agreed if _alike(multiply(_block(row.expand(size, -1), size)), wanted[:1])]
    return tuple(agreed)


def kernel_product(weight: Tensor, bias: Tensor | None, known: dict[tuple[int, int], tuple[Form, ...]]) -> KernelProduct:
    """The product on a GPU. known: forms that agree, by the weight's shape; what is missing is tried and added."""
    shape = (weight.shape[0], weight.shape[1])
    if shape not in known:
        known[shape] = agreeing_forms(weight)
    return KernelProduct(weight, bias, known[shape])


def block_product(multiply: Multiply, weight: Tensor, known: dict[tuple[int, int], tuple[int, ...]]) -> BlockProduct:
    """The product on the CPU, as `kernel_product`. weight: for its shape and type alone."""
    shape = (weight.shape[0], weight.shape[1])
    if shape not in known:
        known[shape] = agreeing_sizes(multiply, weight.shape[1], weight.dtype)
    return BlockProduct(multiply, known[shape])


def _block(x: Tensor, size: int) -> Tensor:
    """The rows x, followed by zeros to make `size`, contiguous and aligned."""
    if x.shape[0] == size and x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0:
        return x
    block = x.new_zeros(size, x.shape[1])
    block[: x.shape[0]] = x
    return block


def _alike(x: Tensor, y: Tensor) -> bool:
    """Bit by bit."""
    kind = torch.int32 if x.dtype == torch.float32 else torch.int16
    return bool((x.view(kind) == y.view(kind)).all())


def _each(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The function of each row (1, width) by itself."""
    return function(x) if x.shape[0] < 2 else torch.cat([function(row[None]) for row in x.unbind()])
