"""Rows rounded to eight bits, each by a scale of its own, for products whose both sides are in eight bits."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from inferometer.kernels.support import constexpr, early, kernel, power_of_two, tl, usable, wait_for_inputs

LARGEST = {"int8": 127.0, "fp8": 448.0}
DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
WIDEST = 32768
"""The widest row that a program holds in its registers."""
ELEMENTS = 16
"""Of a row, for each thread."""
Rounded = Literal["int8", "fp8"]


def round_rows(x: Tensor, kind: Rounded) -> tuple[Tensor, Tensor]:
    """x (rows, inputs), the last dimension contiguous, as eight bits (rows, inputs) and float32 scales (rows,): x is about their product.

    A row's largest number becomes 127 of int8, 448 of e4m3; a row of zeros has a scale of 0. Ties go to the even number. What is no
    number gives undefined ones with NaN for their scale.

    Moves x once, and half as many bytes of the result for a type of 16 bits.
    """
    if usable(x.device) and x.shape[1] <= WIDEST:
        return round_rows_triton(x, kind)
    return round_rows_torch(x, kind)


def round_rows_torch(x: Tensor, kind: Rounded) -> tuple[Tensor, Tensor]:
    """The reference."""
    largest = LARGEST[kind]
    scale = x.float().abs().amax(1) / largest
    levels = x.float() / scale.masked_fill(scale == 0, 1.0)[:, None]
    return (levels.round() if kind == "int8" else levels.clamp(-largest, largest)).to(DTYPES[kind]), scale


def round_rows_triton(x: Tensor, kind: Rounded) -> tuple[Tensor, Tensor]:
    """The kernel. Raises ValueError for rows wider than WIDEST."""
    rows, inputs = x.shape
    if inputs > WIDEST:
        raise ValueError(f"a row of {inputs} is wider than {WIDEST}")
    assert x.stride(1) == 1
    levels = torch.empty((rows, inputs), dtype=DTYPES[kind], device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        width = power_of_two(inputs)
        _round.launch(
            (rows,), x, levels, scale, x.stride(0), LARGEST[kind], inputs=inputs, width=width, whole=kind == "int8",
            num_warps=min(32, max(1, width // (32 * ELEMENTS))), **early(x.device),
        )  # fmt: skip
    return levels, scale


@kernel()
def _round(
    x: Any, levels: Any, scale: Any, x_row: Any, largest: Any, inputs: constexpr, width: constexpr, whole: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One row."""
    wait_for_inputs(early)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, width)
    value = tl.load(x + row * x_row + i, mask=i < inputs, other=0).to(tl.float32)
    # The largest by its bits: those of what is no number are larger than all others'.
    top = tl.max(value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)
    one = tl.where(top < 0x7F800000, top.to(tl.float32, bitcast=True) / largest, float("nan"))
    tl.store(scale + row, one)
    value = value / tl.where(one == 0, 1.0, one)
    if whole:
        # Added to 1.5 * 2^23 a number is rounded to a whole one, which is the sum's lowest byte.
        result = (value + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
    else:
        result = tl.minimum(tl.maximum(value, -largest), largest).to(levels.dtype.element_ty)
    tl.store(levels + row * inputs + i, result, mask=i < inputs)
