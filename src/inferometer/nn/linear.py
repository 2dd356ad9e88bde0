"""Linear maps, and on the CPU a second copy of their weights in the layout that its matrix instructions read."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

# Rows from which the packed float32 weights are faster than torch's own matrix-vector product (measured with 2 threads on a
# Xeon with AMX: 1.5 to 2 times faster at 4 rows, 0.7 times at 1). In bfloat16 the packed ones are faster at any number of rows.
_FLOAT32_ROWS: Final = 3


class Packed:
    """A weight (outputs, inputs) on the CPU, reordered once by oneDNN instead of in every call."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self._rows = _FLOAT32_ROWS if weight.dtype == torch.float32 else 1

    @staticmethod
    def possible(weight: Tensor) -> bool:
        """Whether this build of torch can pack the weight."""
        packable = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)
        return packable and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")

    def serves(self, rows: int) -> bool:
        """Whether the packed weight is the faster one for an input of so many rows."""
        return rows >= self._rows

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, bias, "none", [], "")
        return out


class Linear(nn.Module):
    """A linear map whose weight is (outputs, inputs); left uninitialised for the loader."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False) if bias else None
        self.packed: Packed | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(tokens, inputs) -> (tokens, outputs)."""
        return multiply(x, self.weight, self.bias, self.packed)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, packed: Packed | None) -> Tensor:
    """x (rows, inputs) times weight (outputs, inputs), by its packed copy where there is one and it is faster."""
    if packed is not None and packed.serves(x.shape[0]):
        return packed(x, bias)
    return functional.linear(x, weight, bias)
