"""Weights in few bits, widened as a whole: what matrix libraries multiply many rows by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.eight_bit_floats import wide_float
from inferometer.kernels.quant_weight import SYMMETRIC_ZERO, QuantWeight
from inferometer.kernels.support import constexpr, kernel, tl, usable

COLUMNS = 2048
"""Bytes of a row that a program widens."""


def widened(weight: QuantWeight, dtype: torch.dtype) -> Tensor:
    """(outputs, inputs) in `dtype`, columns in the order of the inputs; computed in float32, rounded once.

    Moves the weight's bytes and outputs * inputs elements of the result.
    """
    if usable(weight.device):
        return widened_triton(weight, dtype)
    return weight.dequantised().to(dtype)


def widened_triton(weight: QuantWeight, dtype: torch.dtype) -> Tensor:
    """The kernel."""
    outputs, inputs = weight.shape
    out = torch.empty((outputs, inputs), dtype=dtype, device=weight.device)
    if outputs == 0 or inputs == 0:
        return out
    data = weight.data.view(torch.uint8) if weight.kind == "fp8" else weight.data
    groups = 1 if weight.group is None else weight.scale.shape[1]
    _widen.launch(
        (outputs, -(-data.shape[1] // COLUMNS)), data, weight.scale, weight.scale if weight.zero is None else weight.zero,
        weight.scale if weight.order is None else weight.order, out, inputs, data.shape[1], groups, kind=weight.kind, group=weight.group,
        zeroed=weight.zero is not None, ordered=weight.order is not None, symmetric=float(SYMMETRIC_ZERO), block=COLUMNS, num_warps=4,
    )  # fmt: skip
    return out


@kernel()
def _widen(
    data: Any, scale: Any, zero: Any, order: Any, out: Any, inputs: Any, row_bytes: Any, groups: Any, kind: constexpr, group: constexpr,
    zeroed: constexpr, ordered: constexpr, symmetric: constexpr, block: constexpr,
) -> None:  # fmt: skip
    """A part of a row."""
    row = tl.program_id(0).to(tl.int64)
    byte = tl.program_id(1) * block + tl.arange(0, block)
    bits = tl.load(data + row * row_bytes + byte, mask=byte < row_bytes, other=0)
    target = out + row * inputs
    if kind == "int4":
        k = 2 * (tl.program_id(1) * block) + tl.arange(0, 2 * block)
        numbers = tl.reshape(tl.join(bits & 15, bits >> 4), [2 * block]).to(tl.float32)
        real = k < inputs
        at = row * groups + k // group
        offset = symmetric
        if zeroed:
            offset = tl.load(zero + at, mask=real, other=0).to(tl.float32)
        numbers = (numbers - offset) * tl.load(scale + at, mask=real, other=0).to(tl.float32)
    else:
        k = byte
        real = k < inputs
        numbers = bits.to(tl.float32) if kind == "int8" else wide_float(bits.to(tl.int32) << 24)
        numbers = numbers * tl.load(scale + row)
    if ordered:
        k = tl.load(order + k, mask=real, other=0)
    tl.store(target + k, numbers.to(out.dtype.element_ty), mask=real)
