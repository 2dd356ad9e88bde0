"""How far a sum over ranks and its norm may be from the reference: by the roundings of either, element by element."""

from __future__ import annotations

import torch
from torch import Tensor

from inferometer.kernels.norm import NormWeights

CARELESS = 1e-5
"""Of numbers near 1, what float32 sums over a row of hundreds or thousands differ by from those in another order."""


def sum_error(parts: Tensor) -> Tensor:
    """Between sums of parts (ranks, ...), of which one is rounded once and the other after every addition, in any order."""
    additions, largest = parts.shape[0] - 1, parts.double().abs().sum(0)
    return (additions + 1) * _roundoff(parts.dtype) * largest * 1.01


def stream_error(parts: Tensor, stream: Tensor) -> Tensor:
    """Between residuals to which such sums have been added, each rounded once more. stream: one of them."""
    error = sum_error(parts)
    return error + 2 * _roundoff(parts.dtype) * (stream.double().abs() + error)


def norm_error(stream: Tensor, error: Tensor | float, norm: NormWeights) -> Tensor:
    """Between the layer norm of `stream` (rows, width) and that of a stream which is at most `error` away from it, each rounded once."""
    s = stream.double()
    apart = torch.as_tensor(error, dtype=torch.float64, device=s.device).expand_as(s)
    deviation = (s.var(-1, correction=0, keepdim=True) + norm.epsilon).sqrt()
    z = (s - s.mean(-1, keepdim=True)) / deviation
    # The mean goes along with all errors, the deviation with those of what is far from the mean. Twice: what is of second order.
    moved = (apart + apart.mean(-1, keepdim=True) + z.abs() * (z.abs() * apart).mean(-1, keepdim=True) * 2) / deviation
    weight = torch.ones_like(s[0]) if norm.weight is None else norm.weight.double()
    bias = torch.zeros_like(s[0]) if norm.bias is None else norm.bias.double()
    before = moved * weight.abs() + CARELESS * ((z * weight).abs() + bias.abs() + weight.abs())
    return before + 2 * _roundoff(stream.dtype) * ((z * weight + bias).abs() + before)


def assert_within(found: Tensor, wanted: Tensor, bound: Tensor | float) -> None:
    """Every number of `found`."""
    over = (found.double() - wanted.double()).abs() - bound
    worst = int(over.argmax())
    assert float(over.view(-1)[worst]) <= 0, (
        f"{int((over > 0).sum())} of {over.numel()}: {float(found.reshape(-1)[worst])} for {float(wanted.reshape(-1)[worst])} at {worst}"
    )


def _roundoff(dtype: torch.dtype) -> float:
    """Of a number, what rounding changes at most."""
    return torch.finfo(dtype).eps / 2
