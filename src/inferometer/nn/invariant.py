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
from inferometer.kernels.cancelling import same_bits
from inferometer.kernels.gate import gate, gate_torch
from inferometer.kernels.invariant_linear import Form, invariant_linear_triton
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.spec import Activation
from inferometer.nn.formats.product import rounded_rows

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


@dataclass(frozen=True, slots=True)
class WidenedProduct:
    """With a weight in few bits, which is widened as a whole for each call. make: the product with a wide weight of its shape. gating:
    that one's `gate`."""

    quant: QuantWeight
    make: Callable[[Tensor], Product]
    gating: Callable[[Tensor, Activation], Tensor]

    def __call__(self, x: Tensor, *, activation: Activation | None = None, residual: Tensor | None = None) -> Tensor:
        wide = self.make(self.quant.dequantised().to(x.dtype))
        return wide(rounded_rows(x, self.quant), activation=activation, residual=residual)

    def gate(self, inner: Tensor, activation: Activation) -> Tensor:
        return self.gating(inner, activation)


def agreeing_sizes(multiply: Multiply, x: Tensor) -> tuple[int, ...]:
    """The sizes of blocks in which every place gives a row the bits that every place of a block of STANDARD rows gives it.

    x: (some rows, inputs), for which `multiply` gives sums that show their order. (1,) if the places of that block differ already.
    """
    agreed = list(SIZES)
    for row in x:
        wanted = multiply(_block(row.expand(STANDARD, -1), STANDARD))
        if not same_bits(wanted, wanted[:1]):
            return (1,)
        agreed = [size for size in agreed if same_bits(multiply(_block(row.expand(size, -1), size)), wanted[:1])]
    return tuple(agreed)


def _block(x: Tensor, size: int) -> Tensor:
    """The rows x, followed by zeros to make `size`, contiguous and aligned."""
    if x.shape[0] == size and x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0:
        return x
    block = x.new_zeros(size, x.shape[1])
    block[: x.shape[0]] = x
    return block


def _each(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The function of each row (1, width) by itself."""
    return function(x) if x.shape[0] < 2 else torch.cat([function(row[None]) for row in x.unbind()])
