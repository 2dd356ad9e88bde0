"""Rounds matrices to few bits, each number to its nearest: no data is needed but the matrix."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.quant_weight import SYMMETRIC_ZERO, QuantWeight
from inferometer.kernels.rounded_rows import LARGEST
from inferometer.nn.formats.layout import QuantLayout, copy

NIBBLES = 15
_AT_ONCE = 1 << 22
"""Numbers rounded at once: what is needed beside the matrix stays below some 100 MiB."""


def round_into(target: QuantWeight, matrix: Tensor) -> None:
    """Rounds a matrix (outputs, inputs) of any floating type into `target`, part by part.

    Numbers that are not finite give undefined ones.
    """
    layout = QuantLayout(target.kind, target.group, zero=target.zero is not None, scale=target.scale.dtype, activations=target.activations)
    step = max(1, _AT_ONCE // target.inputs)
    for start in range(0, target.outputs, step):
        stop = min(start + step, target.outputs)
        copy(target.rows(start, stop), rounded(matrix[start:stop].to(target.device, torch.float32), layout))


def row_maxima(matrix: Tensor) -> Tensor:
    """float32 (outputs,): the largest size of a number of each row."""
    return matrix.abs().amax(1).to(torch.float32)


def rounded(matrix: Tensor, layout: QuantLayout, largest_of_rows: Tensor | None = None) -> QuantWeight:
    """The float32 matrix (outputs, inputs) in few bits, without an order of inputs.

    largest_of_rows: as `row_maxima`, of rows that go on elsewhere; None for these.

    "int8", "fp8": a row's largest number becomes 127 or 448. "int4": a group's numbers and zero lie between 0 and 15, or, symmetric, its
    number of the largest size becomes -8 of -8 to 7.
    """
    if layout.kind != "int4":
        largest = LARGEST[layout.kind]
        scale = (row_maxima(matrix) if largest_of_rows is None else largest_of_rows) / largest
        levels = (matrix / _divisor(scale)[:, None]).clamp(-largest, largest)
        data = levels.round().to(torch.int8) if layout.kind == "int8" else levels.to(torch.float8_e4m3fn)
        return QuantWeight(layout.kind, matrix.shape[1], data, scale, activations=layout.activations)
    assert layout.group is not None
    scale, zero = grid(matrix, layout)
    per_input = torch.arange(matrix.shape[1], device=matrix.device) // layout.group
    levels = nibbles(matrix, scale[:, per_input], None if zero is None else zero[:, per_input])
    return QuantWeight("int4", matrix.shape[1], packed(levels), scale, zero, layout.group)


def grid(matrix: Tensor, layout: QuantLayout) -> tuple[Tensor, Tensor | None]:
    """Scales and zero points (outputs, groups) of "int4", in the layout's type."""
    outputs, inputs = matrix.shape
    assert layout.group is not None
    # Zeros fill up a short last group: every group's range takes in zero anyway.
    groups = functional.pad(matrix, (0, -inputs % layout.group)).view(outputs, -1, layout.group)
    if layout.zero:
        least, most = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
        scale = ((most - least) / NIBBLES).to(layout.scale)
        return scale, (-least / _divisor(scale.float())).clamp(0, NIBBLES).to(layout.scale)
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))[:, :, 0]
    return (largest / -SYMMETRIC_ZERO).to(layout.scale), None


def nibbles(matrix: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """uint8 of matrix's shape: each number's nearest of the 16 levels. scale, zero: each number's own, of matrix's shape."""
    shift = SYMMETRIC_ZERO if zero is None else zero.float()
    return (matrix / _divisor(scale.float()) + shift).round().clamp(0, NIBBLES).to(torch.uint8)


def packed(levels: Tensor) -> Tensor:
    """uint8 (outputs, inputs) from 0 to 15 -> (outputs, ceil(inputs / 2)), the first of two in the low nibble."""
    pairs = functional.pad(levels, (0, levels.shape[1] % 2)).view(levels.shape[0], -1, 2)
    return pairs[:, :, 0] | (pairs[:, :, 1] << 4)


def _divisor(scale: Tensor) -> Tensor:
    """The scale, infinity where it is zero: there every number is zero, or too small for any other scale."""
    return scale.masked_fill(scale == 0, float("inf"))
