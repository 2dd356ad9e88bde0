"""How the product of few rows and a weight in few bits is spread over a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from inferometer.kernels.quant_weight import Kind, QuantWeight
from inferometer.kernels.skinny_launch import MOST_ROWS, Tiling
from inferometer.kernels.support import power_of_two

WORD_INPUTS: dict[Kind, int] = {"int8": 4, "int4": 8, "fp8": 4}
"""Inputs of a word of 32 bits."""
ROW_REGISTERS = 64
"""Of a thread, for all rows."""
LINES = (32, 64, 128)
"""Words of a weight's row that lie side by side in a warp: 128 are all of it, of fewer there are several rows."""
WHOLE: dict[int, tuple[tuple[int, int, int], ...]] = {
    1: ((8, 2, 32), (4, 4, 32), (16, 1, 32), (8, 2, 16), (4, 5, 16)),
    2: ((8, 2, 16), (4, 4, 16), (16, 1, 16)),
    4: ((8, 2, 16), (4, 3, 16), (16, 1, 16)),
}
"""By rows: (warps, programs a processor, words of a tile that a thread holds), each a launch."""
FEW: tuple[tuple[int, int, int, int], ...] = ((128, 4, 5, 2), (128, 8, 5, 2), (64, 4, 6, 3), (256, 8, 4, 1))
"""Of more rows: (outputs, warps, stages, programs a processor). No more programs than have room: a second round would be half empty."""
FEW_NIBBLES: tuple[tuple[int, int, int, int], ...] = ((128, 4, 3, 3), (64, 4, 3, 4), (64, 2, 3, 5), (128, 8, 3, 2), (256, 8, 3, 1))
"""The same for int4."""
MORE: tuple[tuple[int, int, int, int], ...] = ((128, 8, 3, 2),)
MORE_NIBBLES: tuple[tuple[int, int, int, int], ...] = ((64, 4, 2, 2),)
"""Of more than 32 rows, whose sums take most registers."""
BYTES = 128
"""Inputs of a step at most, and of an iteration for weights of 8 bits: a cache line of each row."""
GROUPS = 4
"""Steps of an iteration for int4, where a row has so many: of 32 bytes they would leave memory three quarters idle."""


def whole_possible(weight: QuantWeight) -> bool:
    """Whether rows of the weight are whole words, as the kernel of whole rows reads them."""
    return weight.inputs % WORD_INPUTS[weight.kind] == 0


def quant_candidates(rows: int, weight: QuantWeight) -> tuple[Tiling, ...]:
    """What the tables say for so many rows. The first serves unless measuring says otherwise."""
    padded = power_of_two(rows)
    launches = list(_wholes(padded, weight)) if padded in WHOLE and whole_possible(weight) else []
    step = step_of(weight)
    block = step * GROUPS if weight.kind == "int4" and weight.inputs >= step * GROUPS and _divided(weight) else step
    table = (FEW_NIBBLES if padded <= MOST_ROWS else MORE_NIBBLES) if weight.kind == "int4" else FEW if padded <= MOST_ROWS else MORE
    few = [Tiling(outputs, block, warps, stages, programs, early=True) for outputs, warps, stages, programs in table]
    return tuple(dict.fromkeys((*launches, *few)))


def quant_tiling(rows: int, weight: QuantWeight) -> Tiling:
    """The best of them, before anything is measured."""
    return quant_candidates(rows, weight)[0]


def _wholes(rows: int, weight: QuantWeight) -> Iterator[Tiling]:
    """A program holds its rows in registers: two bytes an input, or four for fp8, once for each row of the weight in a warp."""
    each = WORD_INPUTS[weight.kind]
    words = -(-weight.inputs // each)
    for warps, programs, held in WHOLE[rows]:
        for line in LINES:
            segments = power_of_two(-(-words // line))
            inputs = segments * line * each * (128 // line) // (32 * min(warps, segments))
            if rows * inputs * (4 if weight.kind == "fp8" else 2) // 4 <= ROW_REGISTERS:
                beside = 128 // line
                tile = max(beside, held * 32 * warps // (segments * line))
                yield Tiling(min(tile, 64), line * each, warps, 1, programs, early=True, whole=True)
                break


def step_of(weight: QuantWeight) -> int:
    """Inputs of a step for more rows: as many as share a scale, up to a limit."""
    if not _divided(weight):
        return BYTES
    assert weight.group is not None
    return next(step for step in (128, 64, 32) if weight.group % step == 0)


def _divided(weight: QuantWeight) -> bool:
    """Whether a row has several groups."""
    return weight.group is not None and weight.group < weight.inputs


def words_of(weight: QuantWeight) -> torch.Tensor:
    """int32 (outputs, inputs / inputs of a word). Only where rows are whole words."""
    return weight.data.view(torch.int32)
