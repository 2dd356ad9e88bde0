"""Rotary position embedding and its scalings, on the device.

Frequencies are worked out in float32 in the order of operations in which the models were trained, since an angle at position
10,000 turns a rounding of the frequency into a visible difference.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from inferometer.model.spec import DynamicScaling, LinearScaling, Llama3Scaling, Rotary, YarnScaling


class RotaryEmbedding:
    """Cosine and sine tables of a sweep's tokens.

    The sine carries the sign of the rotation, so that a rotation (`kernels/rotary_write.py`) is x * cos + swapped halves of x * sin.
    """

    def __init__(self, rotary: Rotary, head_size: int, device: torch.device) -> None:
        self.rotary = rotary
        self.head_size = head_size
        self.factor = rotary.scaling.attention_factor if isinstance(rotary.scaling, YarnScaling) else 1.0
        self.frequencies = inverse_frequencies(rotary, head_size).to(device)

    def tables(self, positions: Tensor, lengths: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(cos, signed sin), each (tokens, 1, head_size), for int64 `positions` in sequences of int64 `lengths`, both (tokens,)."""
        if isinstance(self.rotary.scaling, DynamicScaling):
            frequencies = _dynamic(self.rotary, self.rotary.scaling, self.head_size, lengths)
        else:
            frequencies = self.frequencies
        angles = positions[:, None].float() * frequencies
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        return torch.cat((cos, cos), -1).to(dtype)[:, None], torch.cat((-sin, sin), -1).to(dtype)[:, None]


def inverse_frequencies(rotary: Rotary, head_size: int) -> Tensor:
    """float32 (head_size / 2,), radians a position, for scalings that do not depend on the sequence's length."""
    plain = _base_frequencies(rotary.theta, head_size)
    match rotary.scaling:
        case LinearScaling(factor=factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)
        case YarnScaling() as scaling:
            return _yarn(rotary.theta, head_size, scaling)
        case _:
            return plain


def _base_frequencies(theta: float, head_size: int) -> Tensor:
    return 1.0 / (theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size))


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Long wavelengths are scaled, short ones kept, those between blended (Llama 3.1's published reference)."""
    longest = scaling.original_positions / scaling.low_frequency_factor
    shortest = scaling.original_positions / scaling.high_frequency_factor
    wavelength = 2 * math.pi / plain
    blend = (scaling.original_positions / wavelength - scaling.low_frequency_factor) / (
        scaling.high_frequency_factor - scaling.low_frequency_factor
    )
    between = (1 - blend) * plain / scaling.factor + blend * plain
    scaled = torch.where(wavelength > longest, plain / scaling.factor, plain)
    return torch.where((wavelength >= shortest) & (wavelength <= longest), between, scaled)


def _yarn(theta: float, head_size: int, scaling: YarnScaling) -> Tensor:
    """Interpolates slow dimensions, keeps fast ones, with a linear ramp between (arXiv:2309.00071, section 3.2)."""

    def dimension(rotations: float) -> float:
        return head_size * math.log(scaling.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    if low == high:
        high += 0.001  # a ramp of no width would divide by zero
    powers = theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    ramp = ((torch.arange(head_size // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (scaling.factor * powers) * (1 - kept) + 1.0 / powers * kept


def _dynamic(rotary: Rotary, scaling: DynamicScaling, head_size: int, lengths: Tensor) -> Tensor:
    """float32 (tokens, head_size / 2): the base grows with the length once it exceeds the trained one."""
    length = lengths.clamp(min=scaling.original_positions)[:, None].float()
    growth = (scaling.factor * length / scaling.original_positions) - (scaling.factor - 1)
    theta = rotary.theta * growth ** (head_size / (head_size - 2))
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device=lengths.device) / head_size
    return 1.0 / theta**exponents
