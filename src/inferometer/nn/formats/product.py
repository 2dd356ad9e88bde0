"""Products with weights in few bits through torch's own operations: how the CPU multiplies many rows, and a GPU any."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.quant_weight import QuantWeight

_TILE, _GPU_TILE = 1 << 18, 1 << 24
"""Numbers that are widened at once. On a CPU they stay in the cache until they are read; on a GPU a launch must have enough to do."""
_EXACT = 1024
"""Inputs whose products of whole numbers of 8 bits float32 adds up exactly in any order: 1024 * 127 * 128 < 2^24."""


def multiply(x: Tensor, weight: QuantWeight, bias: Tensor | None) -> Tensor:
    """x (rows, inputs) weight^T + bias, (rows, outputs), in the type of x. The widened matrix is never there as a whole."""
    if weight.activations == "int8" and x.device.type == "cpu":
        return _integers(x, weight, bias)
    x = rounded_rows(x, weight)
    out = x.new_empty(x.shape[0], weight.outputs)
    step = max(1, (_TILE if x.device.type == "cpu" else _GPU_TILE) // weight.inputs)
    for start in range(0, weight.outputs, step):
        stop = min(start + step, weight.outputs)
        tile = weight.rows(start, stop).dequantised().to(x.dtype)
        out[:, start:stop] = functional.linear(x, tile, None if bias is None else bias[start:stop])
    return out


def rounded_rows(x: Tensor, weight: QuantWeight) -> Tensor:
    """x, (rows, inputs), as a product with the weight rounds it, in the type of x."""
    if weight.activations == "wide":
        return x
    largest = 127.0 if weight.activations == "int8" else 448.0
    scale = row_scales(x, largest)
    levels = x.float() / scale.masked_fill(scale == 0, 1.0)
    levels = levels.round() if weight.activations == "int8" else levels.clamp(-largest, largest).to(torch.float8_e4m3fn).float()
    return (levels * scale).to(x.dtype)


def row_scales(x: Tensor, largest: float) -> Tensor:
    """float32 (rows, 1): what makes a row's largest number `largest`."""
    return x.float().abs().amax(1, keepdim=True) / largest


def _integers(x: Tensor, weight: QuantWeight, bias: Tensor | None) -> Tensor:
    """Whole numbers times whole numbers: exact until the scales come in."""
    scale = row_scales(x, 127.0)
    levels = (x.float() / scale.masked_fill(scale == 0, 1.0)).round()
    if _integers_are_fast():
        out = torch._int_mm(levels.to(torch.int8), weight.data.t()).float() * scale * weight.scale
        return (out if bias is None else out + bias.float()).to(x.dtype)
    out = x.new_empty(x.shape[0], weight.outputs)
    step = max(1, _TILE // weight.inputs)
    for start in range(0, weight.outputs, step):
        stop = min(start + step, weight.outputs)
        part = _sums(levels, weight.data[start:stop].float()) * scale * weight.scale[start:stop]
        out[:, start:stop] = part if bias is None else part + bias[start:stop].float()
    return out


def _integers_are_fast() -> bool:
    """Whether torch's product of integers is more than a plain loop. Without AVX-512 it took ten times as long as one in float32."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def _sums(levels: Tensor, tile: Tensor) -> Tensor:
    """levels tile^T of whole numbers in float32, rounded once."""
    inputs = levels.shape[1]
    if inputs <= _EXACT:
        return functional.linear(levels, tile)
    total = torch.zeros(levels.shape[0], tile.shape[0], dtype=torch.int32)
    for start in range(0, inputs, _EXACT):
        total += functional.linear(levels[:, start : start + _EXACT], tile[:, start : start + _EXACT]).int()
    return total.float()
