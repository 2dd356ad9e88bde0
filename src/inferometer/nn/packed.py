"""Weights on the CPU in the layout that its matrix instructions read."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor


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
        """Whether this build of torch can pack the weight, on this processor: oneDNN multiplies bfloat16 with AVX-512 or better alone."""
        packable = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        return packable and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

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
