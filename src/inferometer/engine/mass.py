"""Probability mass in fixed point.

Whole numbers add up to the same sum in any order, so a cumulative sum has the same bits in any batch, on any device and under
any parallel scan; a float's has not, and CUDA's scan of a single row even adds in another order than that of several.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 58
"""Fraction bits. Sums up to 32 fit an int64: probabilities, and the entropy of any vocabulary."""


def fixed(values: Tensor) -> Tensor:
    """Numbers from 0 to 1 as multiples of 2^-BITS (rounded down), int64; NaN is 0.

    Exact for a float32 of 2^-34 or more.
    """
    return (values.to(torch.float64) * 2.0**BITS).nan_to_num_(nan=0.0).to(torch.int64)


def floating(mass: Tensor) -> Tensor:
    """Fixed point as float64."""
    return mass.to(torch.float64) * 2.0**-BITS
