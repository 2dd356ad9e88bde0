"""Products of many rows whose both sides are in eight bits, scaled row by row, with what follows them in the same launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.finish import finish
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.support import capability, constexpr, early, kernel, processors, tl, wait_for_inputs
from inferometer.model.spec import Activation


@dataclass(frozen=True, slots=True)
class Blocks:
    """rows, outputs: of a tile. inputs: an iteration. band: tiles of rows that are taken together, so that both sides are in the cache."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    band: int = 8

    def count(self, rows: int, outputs: int) -> int:
        """Tiles of a product."""
        return -(-rows // self.rows) * -(-outputs // self.outputs)


HOPPER = (Blocks(128, 256, 128, 8, 3), Blocks(128, 128, 128, 8, 4), Blocks(64, 64, 128, 4, 5))
AMPERE = (Blocks(128, 128, 64, 4, 3), Blocks(64, 64, 64, 4, 4))
"""Largest first. For 99 KiB of shared memory a block too."""


def blocks(device: torch.device) -> tuple[Blocks, ...]:
    """What a device has room for."""
    return HOPPER if (9, 0) <= capability(device) < (12, 0) else AMPERE


def fitting(rows: int, outputs: int, device: torch.device) -> Blocks:
    """The largest tiles of which there are enough for every processor, else the smallest."""
    choices = blocks(device)
    return next((tiles for tiles in choices if tiles.count(rows, outputs) >= processors(device)), choices[-1])


def eight_bit_matmul(
    levels: Tensor,
    scale: Tensor,
    weight: QuantWeight,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    chosen: Blocks | None = None,
) -> Tensor:
    """activation(scale * (levels data^T) * weight.scale + bias) + residual, each rounded to `dtype` as separate operations would.

    levels: (rows, inputs) of the type of the weight's data, int8 or e4m3, contiguous. scale: float32 (rows,). bias: (outputs,) and
    residual: (rows, outputs), contiguous, of `dtype`. Returns (rows, outputs). For GPUs with matrix instructions for that type.

    Sums are exact for int8 (of up to 2^17 inputs). Of e4m3 they are as Hopper's matrix instructions take them, with 14 bits and a step for
    32 inputs each. Operations: 2 * rows * inputs *
    outputs. Moves rows * inputs and outputs * inputs bytes at least, and the result.
    """
    (rows, inputs), outputs = levels.shape, weight.outputs
    out = torch.empty((rows, outputs), dtype=dtype, device=levels.device)
    if rows == 0 or outputs == 0:
        return out
    assert levels.is_contiguous()
    assert residual is None or residual.stride(1) == 1
    tiles = chosen or fitting(rows, outputs, levels.device)
    added = out if residual is None else residual
    _multiply.launch(
        (tiles.count(rows, outputs),), levels, weight.data, scale, weight.scale, out if bias is None else bias, added, out, rows, outputs,
        inputs, added.stride(0), rows_tile=tiles.rows, outputs_tile=tiles.outputs, block=tiles.inputs, band=tiles.band,
        stages=tiles.stages, even=inputs % tiles.inputs == 0, whole=weight.kind == "int8", activation=activation,
        biased=bias is not None, added=residual is not None, num_warps=tiles.warps, num_stages=tiles.stages, **early(levels.device),
    )  # fmt: skip
    return out


@kernel("rows")
def _multiply(
    levels: Any, data: Any, scale: Any, weight_scale: Any, bias: Any, residual: Any, out: Any, rows: Any, outputs: Any, inputs: Any,
    residual_row: Any, rows_tile: constexpr, outputs_tile: constexpr, block: constexpr, band: constexpr, stages: constexpr,
    even: constexpr, whole: constexpr, activation: constexpr, biased: constexpr, added: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One tile. Tiles go down a band of rows before they go on to the next outputs."""
    wait_for_inputs(early)
    down = tl.cdiv(rows, rows_tile)
    across = tl.cdiv(outputs, outputs_tile)
    first = tl.program_id(0) // (band * across) * band
    height = tl.minimum(down - first, band)
    within = tl.program_id(0) % (band * across)
    m = (first + within % height) * rows_tile + tl.arange(0, rows_tile)
    n = within // height * outputs_tile + tl.arange(0, outputs_tile)
    k = tl.arange(0, block)
    # Behind the last row and output the last ones are read again.
    left = levels + tl.minimum(m, rows - 1).to(tl.int64)[:, None] * inputs + k[None, :]
    right = data + tl.minimum(n, outputs - 1).to(tl.int64)[None, :] * inputs + k[:, None]
    sums = tl.zeros([rows_tile, outputs_tile], tl.int32 if whole else tl.float32)
    for base in tl.range(0, inputs, block, num_stages=stages):
        if even:
            a = tl.load(left + base)
            b = tl.load(right + base)
        else:
            # Triton 3.6 makes no e4m3 of a whole number.
            nothing: tl.constexpr = 0 if whole else 0.0
            a = tl.load(left + base, mask=(base + k < inputs)[None, :], other=nothing)
            b = tl.load(right + base, mask=(base + k < inputs)[:, None], other=nothing)
        sums = tl.dot(a, b, sums, out_dtype=tl.int32 if whole else tl.float32)
    value = sums.to(tl.float32) * tl.load(scale + m, mask=m < rows, other=0)[:, None]
    value = value * tl.load(weight_scale + n, mask=n < outputs, other=0)[None, :]
    real = (m < rows)[:, None] & (n < outputs)[None, :]
    at = m.to(tl.int64)[:, None]
    value = finish(
        value, tl.broadcast_to(bias + n[None, :], (rows_tile, outputs_tile)), residual + at * residual_row + n[None, :], real, activation,
        biased, added, out.dtype.element_ty,
    )  # fmt: skip
    tl.store(out + at * outputs + n[None, :], value, mask=real)
