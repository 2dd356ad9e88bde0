"""Linear maps, and on the CPU their weights in the layout that its matrix instructions read."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


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
    """A linear map whose weight is (outputs, inputs); left uninitialised for the loader."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False) if bias else None
        self.packed: Packed | None = None

    def pack(self) -> None:
        """Replaces the weight by its packed form, where that is possible: no second copy is kept, `weight` is left a shape."""
        if Packed.possible(self.weight):
            self.packed = Packed(self.weight)
            self.weight = nn.Parameter(self.weight.to("meta"), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(tokens, inputs) -> (tokens, outputs)."""
        if self.packed is not None:
            return self.packed(x, self.bias)
        return functional.linear(x, self.weight, self.bias)
