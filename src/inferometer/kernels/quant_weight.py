"""A weight in few bits, as kernels read it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["int8", "int4", "fp8"]
Activations = Literal["wide", "int8", "fp8"]

DATA_DTYPES: dict[Kind, torch.dtype] = {"int8": torch.int8, "int4": torch.uint8, "fp8": torch.float8_e4m3fn}
SYMMETRIC_ZERO = 8
"""What a nibble of 0 means less than, where no zero points are kept."""


@dataclass(frozen=True, slots=True)
class QuantWeight:
    """The matrix (outputs, inputs) of a linear map; all tensors contiguous and on one device.

    data: "int8" int8 (outputs, inputs); "fp8" float8_e4m3fn (outputs, inputs); "int4" uint8 (outputs, ceil(inputs / 2)), two
    consecutive inputs a byte, the first in the low nibble (the last high nibble of an odd number of inputs is 0 and stands for nothing).
    scale: "int8" and "fp8" float32 (outputs,): w = scale * data. "int4" float16, bfloat16 or float32 (outputs, groups).
    group: inputs that share a scale in "int4", a multiple of 32 or all; groups = ceil(inputs / group), the last may be short.
        Less where ranks cut a matrix within its groups.
    zero: "int4" only, of scale's type and shape, not always whole numbers: w = scale * (nibble - zero); None for 8 everywhere.
    order: None, or int32 (inputs,): column k of the matrix as stored belongs to input order[k], so that x[:, order] is what it takes.
    activations: how a product rounds x: "wide" not at all; "int8" or "fp8" by a scale for each row of x, largest value to 127 or 448.

    Raises ValueError where types or shapes contradict each other.
    """

    kind: Kind
    inputs: int
    data: Tensor
    scale: Tensor
    zero: Tensor | None = None
    group: int | None = None
    order: Tensor | None = None
    activations: Activations = "wide"

    def __post_init__(self) -> None:
        outputs = self.data.shape[0]
        columns = -(-self.inputs // 2) if self.kind == "int4" else self.inputs
        scales = (outputs,) if self.group is None else (outputs, -(-self.inputs // self.group))
        if self.data.dtype != DATA_DTYPES[self.kind] or self.data.shape != (outputs, columns):
            raise ValueError(f"{self.kind} data of {self.inputs} inputs cannot be {self.data.dtype} {tuple(self.data.shape)}")
        if (self.group is None) == (self.kind == "int4"):
            raise ValueError("int4 has groups, and nothing else has")
        if self.scale.shape != scales or (self.kind != "int4" and self.scale.dtype != torch.float32):
            raise ValueError(f"scales of {self.kind} cannot be {self.scale.dtype} {tuple(self.scale.shape)}, expected {scales}")
        if self.zero is not None and (self.kind != "int4" or self.zero.shape != scales or self.zero.dtype != self.scale.dtype):
            raise ValueError("zero points are int4's alone, of the type and shape of its scales")
        if self.order is not None and (self.order.shape != (self.inputs,) or self.order.dtype != torch.int32):
            raise ValueError("order is int32, one number an input")
        if self.activations != "wide" and self.activations != self.kind:
            raise ValueError(f"{self.activations} activations go with {self.activations} weights, not {self.kind}")

    @property
    def outputs(self) -> int:
        """Rows of the matrix."""
        return self.data.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.outputs, self.inputs

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.data.device

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is held."""
        return tuple(tensor for tensor in (self.data, self.scale, self.zero, self.order) if tensor is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def to(self, device: torch.device | str) -> QuantWeight:
        """The same on another device."""
        moved = {name: None if t is None else t.to(device) for name, t in (("zero", self.zero), ("order", self.order))}
        return replace(self, data=self.data.to(device), scale=self.scale.to(device), zero=moved["zero"], order=moved["order"])

    def empty_on(self, device: torch.device | str) -> QuantWeight:
        """One like it on a device, its numbers uninitialised."""
        made = {name: None if t is None else torch.empty_like(t, device=device) for name, t in (("zero", self.zero), ("order", self.order))}
        data, scale = torch.empty_like(self.data, device=device), torch.empty_like(self.scale, device=device)
        return replace(self, data=data, scale=scale, zero=made["zero"], order=made["order"])

    def rows(self, start: int, stop: int) -> QuantWeight:
        """Some of its outputs; a view."""
        zero = None if self.zero is None else self.zero[start:stop]
        return replace(self, data=self.data[start:stop], scale=self.scale[start:stop], zero=zero)

    def picked(self, outputs: Tensor) -> QuantWeight:
        """The outputs of these numbers, int64 (outputs to take,), in their order; a copy."""
        zero = None if self.zero is None else self.zero[outputs]
        data = self.data.view(torch.uint8)[outputs].view(self.data.dtype)
        return replace(self, data=data, scale=self.scale[outputs], zero=zero)

    def levels(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """(outputs, inputs): the numbers as they are stored, before scales and zero points, columns in stored order."""
        if self.kind != "int4":
            return self.data.to(dtype)
        return torch.stack((self.data & 15, self.data >> 4), -1).flatten(1)[:, : self.inputs].to(dtype)

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """(outputs, inputs): the matrix itself, columns in the order of the inputs; computed in `dtype`."""
        levels = self.levels(dtype)
        if self.group is None:
            return levels * self.scale.to(dtype)[:, None]
        if self.inputs % self.group == 0:
            # A number for each group goes over its inputs as it is read, and need not be copied for each of them.
            zero = SYMMETRIC_ZERO if self.zero is None else self.zero.to(dtype)[:, :, None]
            levels = levels.reshape(self.outputs, self.inputs // self.group, self.group)
            matrix = ((levels - zero) * self.scale.to(dtype)[:, :, None]).flatten(1)
        else:
            per_input = torch.arange(self.inputs, device=self.device) // self.group
            zero = SYMMETRIC_ZERO if self.zero is None else self.zero.to(dtype)[:, per_input]
            matrix = (levels - zero) * self.scale.to(dtype)[:, per_input]
        if self.order is None:
            return matrix
        out = torch.empty_like(matrix)
        out[:, self.order.long()] = matrix
        return out
