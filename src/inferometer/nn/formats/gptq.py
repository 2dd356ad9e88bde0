"""Rounds a matrix so that its products with given inputs change least: each column's error is made up for by the columns to come.

Frantar et al., GPTQ, 2022 (arXiv:2210.17323): columns in the order of their inputs' power, their grids fixed beforehand, so that groups
stay where they are.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from inferometer.kernels.quant_weight import SYMMETRIC_ZERO, QuantWeight
from inferometer.kernels.rounded_rows import LARGEST
from inferometer.nn.formats.layout import QuantLayout
from inferometer.nn.formats.rounding import NIBBLES, grid, packed

DAMPING: Final = 0.01
"""Of the mean power of the inputs, added to each."""
BLOCK: Final = 128
"""Columns after which the errors are passed on to all that follow."""
SHRINKS: Final = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Of a group's range: cutting off its outermost numbers may make the others' steps finer than it costs."""


def calibrated(matrix: Tensor, moments: Tensor, layout: QuantLayout) -> QuantWeight:
    """The float32 matrix (outputs, inputs) in few bits. moments: float64 (inputs, inputs), the sum of x^T x over the inputs x.

    Raises ValueError where moments are not finite.
    """
    if not bool(moments.isfinite().all()):
        raise ValueError("the inputs hold numbers that are not finite")
    power = moments.diagonal().float()
    scale, zero = _grids(matrix, power, layout)
    step, shift = _per_input(scale, layout, matrix.shape[1]), None if zero is None else _per_input(zero, layout, matrix.shape[1])
    order = torch.argsort(power, descending=True)
    factor = _factor(moments[order][:, order])
    # Columns as rows, so that they lie in one piece.
    rest = matrix.t()[order].contiguous()
    steps, shifts = step.t()[order], None if shift is None else shift.t()[order]
    levels = torch.empty(rest.shape, device=rest.device)
    inputs = len(rest)
    for begin in range(0, inputs, BLOCK):
        end = min(begin + BLOCK, inputs)
        errors = torch.zeros(end - begin, rest.shape[1], device=rest.device)
        for i in range(begin, end):
            levels[i], value = _nearest(rest[i], steps[i], None if shifts is None else shifts[i], layout)
            errors[i - begin] = (rest[i] - value) / factor[i, i]
            rest[i + 1 : end] -= factor[i, i + 1 : end, None] * errors[i - begin]
        rest[end:] -= factor[begin:end, end:].t() @ errors
    unordered = torch.empty_like(levels)
    unordered[order] = levels
    return _weight(unordered.t(), scale, zero, layout)


def _factor(moments: Tensor) -> Tensor:
    """float32: the upper Cholesky factor of the damped moments' inverse."""
    damped = moments.clone()
    diagonal = damped.diagonal()
    diagonal += max(DAMPING * float(diagonal.mean()), torch.finfo(torch.float32).tiny)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()


def _grids(matrix: Tensor, power: Tensor, layout: QuantLayout) -> tuple[Tensor, Tensor | None]:
    """Scales and zero points, of ranges that cost least where each number is weighed with its input's power."""
    if layout.kind != "int4":
        return matrix.abs().amax(1) / LARGEST[layout.kind], None
    best: Tensor | None = None
    chosen = grid(matrix, layout)
    for shrink in SHRINKS:
        scale, zero = grid(matrix * shrink, layout)
        step = _per_input(scale, layout, matrix.shape[1])
        shift = None if zero is None else _per_input(zero, layout, matrix.shape[1])
        loss = _by_group((matrix - _nearest(matrix, step, shift, layout)[1]).square() * power, layout)
        if best is None:
            best, chosen = loss, (scale, zero)
            continue
        better = loss < best
        best = torch.where(better, loss, best)
        kept_scale, kept_zero = chosen
        chosen = (
            torch.where(better, scale, kept_scale),
            None if zero is None or kept_zero is None else torch.where(better, zero, kept_zero),
        )
    return chosen


def _by_group(values: Tensor, layout: QuantLayout) -> Tensor:
    assert layout.group is not None
    padded = torch.nn.functional.pad(values, (0, -values.shape[1] % layout.group))
    return padded.view(values.shape[0], -1, layout.group).sum(2)


def _per_input(scale: Tensor, layout: QuantLayout, inputs: int) -> Tensor:
    """float32 (outputs, inputs)."""
    if layout.group is None:
        return scale.float()[:, None].expand(-1, inputs)
    return scale.float()[:, torch.arange(inputs, device=scale.device) // layout.group]


def _nearest(values: Tensor, step: Tensor, shift: Tensor | None, layout: QuantLayout) -> tuple[Tensor, Tensor]:
    """The nearest levels, and what they stand for."""
    scaled = values / step.masked_fill(step == 0, float("inf"))
    if layout.kind == "int4":
        middle: Tensor | float = SYMMETRIC_ZERO if shift is None else shift
        level = (scaled + middle).round().clamp(0, NIBBLES)
        return level, (level - middle) * step
    scaled = scaled.clamp(-LARGEST[layout.kind], LARGEST[layout.kind])
    level = scaled.round() if layout.kind == "int8" else scaled.to(torch.float8_e4m3fn).float()
    return level, level * step


def _weight(levels: Tensor, scale: Tensor, zero: Tensor | None, layout: QuantLayout) -> QuantWeight:
    inputs = levels.shape[1]
    if layout.kind == "int4":
        return QuantWeight("int4", inputs, packed(levels.to(torch.uint8).contiguous()), scale, zero, layout.group)
    kind = torch.int8 if layout.kind == "int8" else torch.float8_e4m3fn
    return QuantWeight(layout.kind, inputs, levels.contiguous().to(kind), scale, activations=layout.activations)
