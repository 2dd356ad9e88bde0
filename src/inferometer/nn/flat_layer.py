"""A layer's weights as one run of bytes, so that one copy brings them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import torch
from torch import Tensor, nn

from inferometer.kernels.quant_weight import QuantWeight
from inferometer.nn.linear import Linear

ALIGNMENT: Final = 256
"""Bytes to which every tensor's place is rounded up: matrix libraries choose by no coarser alignment, so that they choose as for tensors
with memory of their own."""

_PARTS: Final = ("data", "scale", "zero", "order")


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor: the module that it belongs to (a path within the layer), its name there or its part of a weight in few bits."""

    module: str
    name: str
    quantised: bool
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    def of(self, memory: Tensor) -> Tensor:
        """The tensor's place in the layer's memory, uint8 (bytes,), as what it is: a view of its shape and dtype."""
        end = self.offset + prod(self.shape) * self.dtype.itemsize
        return memory[self.offset : end].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class FlatLayer:
    """The tensors of a layer, one after another, in `nbytes` bytes."""

    fields: tuple[Field, ...]
    nbytes: int

    @classmethod
    def of(cls, layer: nn.Module) -> FlatLayer:
        """Of a layer that may lie on the meta device: only shapes and types count."""
        fields: list[Field] = []
        end = 0
        for path, name, quantised, tensor in _tensors(layer):
            fields.append(Field(path, name, quantised, tuple(tensor.shape), tensor.dtype, end))
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        return cls(tuple(fields), end)

    def bind(self, layer: nn.Module, memory: Tensor) -> None:
        """Makes the layer's weights views of uint8 memory (nbytes,) at least, aligned as they are; what lies there is what they hold."""
        parts: dict[str, dict[str, Tensor]] = {}
        for field in self.fields:
            view = field.of(memory)
            if field.quantised:
                parts.setdefault(field.module, {})[field.name] = view
            else:
                setattr(layer.get_submodule(field.module), field.name, nn.Parameter(view, requires_grad=False))
        for path, tensors in parts.items():
            linear = layer.get_submodule(path)
            assert isinstance(linear, Linear)
            assert linear.quant is not None
            linear.quant = replace(
                linear.quant, data=tensors["data"], scale=tensors["scale"], zero=tensors.get("zero"), order=tensors.get("order")
            )


def _tensors(layer: nn.Module) -> Iterator[tuple[str, str, bool, Tensor]]:
    """Module path, name, whether it is part of a weight in few bits, and the tensor."""
    for path, module in layer.named_modules():
        quant: QuantWeight | None = module.quant if isinstance(module, Linear) else None
        if quant is not None:
            for part in _PARTS:
                tensor = getattr(quant, part)
                if tensor is not None:
                    yield path, part, True, tensor
        for name, parameter in module.named_parameters(recurse=False):
            if not (name == "weight" and quant is not None):
                yield path, name, False, parameter
