"""Products whose every sum is zero, so that nothing but the rounding is left of them, and with it the order of additions."""

from __future__ import annotations

import torch
from torch import Tensor


def cancelling(rows: int, outputs: int, inputs: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """x (rows, inputs) and weight (outputs, inputs), on the CPU, at random, with x weight^T = 0: every product is there a second time,
    at a random place and with the other sign.

    Two programs that add up in different orders give results of which hardly any number is the same. Of other sums rounding to 16 bits
    would hide that: it changes one number of ten thousands.
    """
    draw = torch.Generator().manual_seed(seed)
    half = inputs // 2
    order = torch.randperm(inputs, generator=draw)
    one, other, rest = order[:half], order[half : 2 * half], order[2 * half :]
    x, weight = torch.empty(rows, inputs, dtype=dtype), torch.empty(outputs, inputs, dtype=dtype)
    x[:, one] = torch.randn(rows, half, generator=draw).to(dtype)
    weight[:, one] = torch.randn(outputs, half, generator=draw).to(dtype)
    x[:, other], weight[:, other] = x[:, one], -weight[:, one]
    x[:, rest], weight[:, rest] = 1, 0
    return x, weight


def same_bits(x: Tensor, y: Tensor) -> bool:
    """Whether all numbers of x and y, broadcast, of one type of 16 or 32 bits, are equal bit by bit; NaN is then equal to itself."""
    kind = torch.int32 if x.dtype == torch.float32 else torch.int16
    return bool((x.view(kind) == y.view(kind)).all())
