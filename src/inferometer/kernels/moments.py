"""Mean and spread of a row in parts, from which a norm that comes later needs no look at the row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.support import constexpr, kernel, tl


@dataclass(frozen=True, slots=True)
class Moments:
    """Of each row and each `span` of its elements, (rows, parts): their mean, and the sum of their squared distances from it, float32."""

    means: Tensor
    squares: Tensor
    span: int

    @classmethod
    def of(cls, rows: int, width: int, span: int, device: torch.device) -> Moments:
        """Uninitialised ones of rows of `width` elements."""
        size = rows, -(-width // span)
        return cls(*(torch.empty(size, dtype=torch.float32, device=device) for _ in range(2)), span)


@kernel()
def put_moments(value: Any, real: Any, count: Any, at: Any, wanted: Any, means: Any, squares: Any) -> None:
    """Stores those of the rows of value (rows, span), of which `count` elements are real."""
    taken = tl.where(real, value.to(tl.float32), 0.0)
    mean = tl.sum(taken, 1) / count
    off = tl.where(real, taken - mean[:, None], 0.0)
    tl.store(means + at, mean, mask=wanted)
    tl.store(squares + at, tl.sum(off * off, 1), mask=wanted)


@kernel()
def centre_and_scale(
    means: Any, squares: Any, m: Any, wanted: Any, width: Any, span: Any, epsilon: Any, parts: constexpr, normed: constexpr,
) -> Any:  # fmt: skip
    """Of rows m of `width` elements: what is subtracted from each, and by what the rest is multiplied. parts: a power of two."""
    part = tl.arange(0, parts)
    count = tl.cdiv(width, span)
    there = wanted[:, None] & (part < count)[None, :]
    at = m[:, None] * count + part[None, :]
    mean = tl.load(means + at, mask=there, other=0)
    square = tl.load(squares + at, mask=there, other=0)
    weight = tl.maximum(tl.minimum(width - part * span, span), 0).to(tl.float32)[None, :]
    centre = tl.sum(mean * weight, 1) / width
    if normed == "rms":
        centre = centre * 0.0
    off = mean - centre[:, None]
    spread = tl.sum(tl.where(there, square + weight * off * off, 0.0), 1) / width
    return centre, tl.rsqrt(spread + epsilon)
