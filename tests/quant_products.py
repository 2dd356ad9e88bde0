"""Rows for maps in few bits, what they come to in float64, and launches of every kind."""

from __future__ import annotations

import torch
from torch import Tensor

from inferometer.kernels.quant_launch import WORD_INPUTS
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.skinny_launch import Tiling
from inferometer.kernels.support import power_of_two

# Nibbles less a zero point are rounded to the type, as a widened matrix would be.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def fenced(rows: int, width: int, dtype: torch.dtype, seed: int, device: str = "cpu") -> Tensor:
    """Between NaN, so that what is read beside it shows; with a number in the first row that is far larger than the others."""
    draw = torch.Generator().manual_seed(seed)
    room = torch.full((rows + 2, width + 16), torch.nan)
    room[1:-1, :width] = torch.randn(rows, width, generator=draw)
    room[1, width // 2] = 60.0
    return room.to(device, dtype)[1:-1, :width]


def exact(x: Tensor, weight: QuantWeight) -> Tensor:
    """float64 (rows, outputs) on the CPU."""
    return x.cpu().double() @ weight.dequantised(torch.float64).cpu().T


def close(got: Tensor, want: Tensor, dtype: torch.dtype, slack: float = 1, beside: Tensor | float = 0) -> None:
    """Within the dtype's tolerance times `slack`, and within what each number may be off `beside` that."""
    assert got.dtype == dtype
    off = (got.double() - want.double()).abs()
    allowed = slack * TOLERANCE[dtype] * (1 + want.double().abs()) + beside
    assert bool((off <= allowed).all()), f"off by up to {off.max():.3g}; {int((~(off <= allowed)).sum())} of {off.numel()} by too much"


def whole(weight: QuantWeight, tile: int) -> Tiling:
    """All inputs of a row at once, `tile` outputs a program."""
    return Tiling(tile, power_of_two(weight.inputs), 4, 1, 2, whole=True)


def launches_for(weight: QuantWeight, rows: int) -> list[Tiling]:
    """Launches of both kinds for so many rows."""
    span = 16 * WORD_INPUTS[weight.kind]
    launches = [Tiling(64, span, 4, 2, 64), Tiling(32, 2 * span, 2, 2, 3)]
    return [*launches, whole(weight, 8), whole(weight, 2)] if rows <= 4 else launches


IN_BYTES = (Tiling(64, 128, 4, 2, 64, in_bytes=True), Tiling(32, 128, 2, 2, 3, in_bytes=True))
"""For rows that are split into bytes."""

READIED = {
    "int8": Tiling(64, 128, 4, 2, 64, in_bytes=True, readied=True),
    "fp8": Tiling(32, 128, 2, 2, 3, in_bytes=True, readied=True),
    "int4 g64": Tiling(64, 256, 4, 2, 64, readied=True),
    "int4 g64 symmetric": Tiling(32, 128, 2, 2, 3, readied=True),
    "int4 g128": Tiling(64, 256, 4, 2, 3, readied=True),
}
"""By format, for rows that a launch before has brought into the form of the product."""


def rounded_by_blocks(x: Tensor, kind: str, block: int) -> Tensor:
    """Each row's blocks of inputs in numbers of 8 bits: whole ones up to 127, or e4m3 of numbers whose largest is from 128 to 256."""
    wide = x.double()
    out = torch.empty_like(wide)
    for first in range(0, x.shape[1], block):
        part = wide[:, first : first + block]
        largest = part.abs().amax(1, keepdim=True)
        scale = largest / 127 if kind == "int8" else (largest.log2().floor() - 7).exp2()
        levels = part / scale.masked_fill(largest == 0, 1.0)
        out[:, first : first + block] = (levels.round() if kind == "int8" else levels.float().to(torch.float8_e4m3fn).double()) * scale
    return out
