"""Which product every weight of a model of invariant numerics gets, by its shape: tried on this device, once a shape.

On the CPU once in a process, whatever the model: what the library does with a shape depends on nothing else but its threads.
"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.cancelling import cancelling
from inferometer.kernels.head_matrix import Matrix
from inferometer.kernels.invariant_linear import Form, agreeing_forms
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.nn.invariant import BlockProduct, KernelProduct, Multiply, Product, WidenedProduct, agreeing_sizes
from inferometer.nn.packed import Packed

ROWS = 2
NUMBERS = 256
"""The least rows that are tried on the CPU, and numbers of their results: each of these shows whether the order was the same, unless by
chance two orders round alike."""
FEW_INPUTS, MORE_NUMBERS, MOST_ROWS = 64, 16384, 512
"""Sums of fewer inputs mostly round alike (of 4 in bfloat16 all but one of a thousand): more numbers of them, which cost next to nothing,
are tried, of so many rows at most."""

Shape = tuple[int, int, bool, bool]
"""Outputs, inputs, whether there is a bias, whether the weight is packed: what a library may choose by."""


class ProductChoice:
    """Of a model on `device` in `dtype`."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._forms: dict[Shape, tuple[Form, ...]] = {}

    def product_with(self, matrix: Matrix) -> Product:
        """The product with a head's matrix."""
        if isinstance(matrix, Tensor):
            return self.product(matrix)
        return self.product(torch.empty(matrix.shape, dtype=self._dtype, device="meta"), quant=matrix)

    @torch.inference_mode()
    def product(
        self, weight: Tensor, bias: Tensor | None = None, packed: Packed | None = None, quant: QuantWeight | None = None
    ) -> Product:
        """The product with a weight (outputs, inputs), of which only the shape counts where there is another form of it."""
        outputs, inputs = weight.shape
        if quant is not None:
            make = partial(self.product, bias=bias)
            return WidenedProduct(quant, make, make(weight).gate)
        if self._device.type == "cuda":
            shape = outputs, inputs, False, False
            if shape not in self._forms:
                self._forms[shape] = agreeing_forms(outputs, inputs, self._dtype, self._device)
            return KernelProduct(weight, bias, self._forms[shape])
        shape = outputs, inputs, bias is not None, packed is not None
        return BlockProduct(_multiply(weight, bias, packed), _agreed(shape, self._dtype, torch.get_num_threads()))


@cache
def _agreed(shape: Shape, dtype: torch.dtype, threads: int) -> tuple[int, ...]:
    """The sizes of blocks that agree on the CPU, with so many threads as there are now."""
    del threads
    outputs, inputs, biased, packed = shape
    numbers = NUMBERS if inputs >= FEW_INPUTS else MORE_NUMBERS
    x, trial = cancelling(max(ROWS, min(MOST_ROWS, -(-numbers // outputs))), outputs, inputs, dtype)
    nothing = torch.zeros(outputs, dtype=dtype) if biased else None
    return agreeing_sizes(_multiply(trial, nothing, Packed(trial) if packed else None), x)


def _multiply(weight: Tensor, bias: Tensor | None, packed: Packed | None) -> Multiply:
    return partial(functional.linear, weight=weight, bias=bias) if packed is None else partial(packed, bias=bias)
