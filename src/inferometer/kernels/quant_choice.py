"""Which launch a linear map of few rows gets whose weight is in few bits, and what computes more of them on a GPU."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from inferometer.kernels.eight_bit_matmul import eight_bit_matmul
from inferometer.kernels.finish import finish_torch
from inferometer.kernels.quant_launch import most_rows, quant_candidates, quant_tiling
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.rounded_rows import round_rows
from inferometer.kernels.skinny_choice import DTYPES, Launches, bucket
from inferometer.kernels.skinny_launch import MOST_ROWS, Tiling
from inferometer.kernels.support import capability, usable
from inferometer.model.spec import Activation

SCALED_OUTPUT = torch.bfloat16
"""The one type that torch's product of e4m3 numbers with a scale for each row gives."""
PRODUCTS = {"int8": (8, 0), "fp8": (8, 9)}
"""The lowest compute capability that multiplies both sides in eight bits."""


def format_name(weight: QuantWeight) -> str:
    """What decides how fast a weight of given sizes is read."""
    parts: list[str] = [weight.kind]
    if weight.group is not None:
        parts.append(f"g{weight.group}")
    if weight.zero is not None:
        parts.append("zero")
    if weight.kind == "int4":
        parts.append(str(weight.scale.dtype).removeprefix("torch."))
    if weight.order is not None:
        parts.append("ordered")
    if weight.activations != "wide":
        parts.append(f"by {weight.activations}")
    return " ".join(parts)


def quant_launch_for(x: Tensor, weight: QuantWeight, launches: Launches) -> Tiling | None:
    """How the kernel of few rows is launched for x (rows, inputs); None where it does not serve. Reads no device."""
    if x.device.type != "cuda" or x.dim() != 2 or x.dtype not in DTYPES or x.stride(1) != 1 or not usable(x.device):
        return None
    if not 0 < x.shape[0] <= most_rows(weight):
        return None
    if x.shape[0] > MOST_ROWS and multiplies(weight.activations, x.device):
        # Both sides in eight bits took 22 us where the launches here took 46 (64 rows, 16384 x 4096 in e4m3, H200).
        return None
    key = bucket(x.shape[0])
    if key in launches:
        return launches[key]
    if capability(x.device) >= (8, 0):
        return quant_tiling(x.shape[0], weight)
    # Triton has no matrix instructions to use there.
    return next((launch for launch in quant_candidates(x.shape[0], weight) if launch.whole), None)


@lru_cache
def multiplies(activations: str, device: torch.device) -> bool:
    """Whether both sides of a product are in eight bits there, as the weight's `activations` ask."""
    return activations in PRODUCTS and usable(device) and capability(device) >= PRODUCTS[activations]


def quant_many(
    x: Tensor, weight: QuantWeight, bias: Tensor | None, *, activation: Activation | None = None, residual: Tensor | None = None
) -> Tensor:
    """activation(x weight^T + bias) + residual of many rows, with both sides in eight bits. Only where that `multiplies`.

    x: (rows, inputs), rounded row by row as the weight's `activations` say; residual: (rows, outputs). Returns (rows, outputs). Products of
    e4m3 are the matrix library's where it takes such, of numbers of 16 inputs and outputs, with sums as `eight_bit_matmul` has them.
    """
    assert weight.activations != "wide"
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    levels, scale = round_rows(x, weight.activations)
    if weight.activations == "fp8" and x.dtype == SCALED_OUTPUT and all(size % 16 == 0 for size in weight.shape):
        # Faster than the kernel here wherever both were measured (H200, torch 2.11: 1.49 against 1.94 ms for 16384 x 4096 x 16384).
        out = torch._scaled_mm(
            levels, weight.data.t(), scale[:, None], weight.scale[None, :], bias=bias, out_dtype=x.dtype, use_fast_accum=True
        )
        return finish_torch(out, activation, residual)
    return eight_bit_matmul(levels, scale, weight, x.dtype, bias, activation=activation, residual=residual)
