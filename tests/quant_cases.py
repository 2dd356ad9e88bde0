"""Weights in few bits with random contents, and what they stand for."""

from __future__ import annotations

from typing import Any

import torch

from inferometer.kernels.quant_weight import Kind, QuantWeight

FORMATS: dict[str, dict[str, Any]] = {
    "int8": {"kind": "int8"},
    "fp8": {"kind": "fp8"},
    "int4 g32": {"kind": "int4", "group": 32},
    "int4 g64": {"kind": "int4", "group": 64, "scale": torch.bfloat16},
    "int4 g128": {"kind": "int4", "group": 128},
    "int4 g64 symmetric": {"kind": "int4", "group": 64, "zeroed": False},
    "int4 all": {"kind": "int4", "group": 0, "scale": torch.float32},
}
"""Arguments of `drawn_weight`; group 0 is one for all inputs."""


def drawn_weight(
    outputs: int,
    inputs: int,
    kind: Kind,
    *,
    group: int | None = None,
    zeroed: bool = True,
    ordered: bool = False,
    scale: torch.dtype = torch.float16,
    seed: int = 0,
    device: str = "cpu",
) -> QuantWeight:
    """Every number that the format has, scaled so that a matrix of it is about as large as one of a model."""
    draw = torch.Generator().manual_seed(seed)
    size = (outputs, inputs)
    order = torch.randperm(inputs, generator=draw, dtype=torch.int32).to(device) if ordered else None
    if kind == "int4":
        group = group or inputs
        data = torch.randint(0, 256, (outputs, -(-inputs // 2)), generator=draw, dtype=torch.int32).to(torch.uint8)
        if inputs % 2:
            data[:, -1] &= 15
        per_group = (outputs, -(-inputs // group))
        scales = ((torch.rand(per_group, generator=draw) + 0.1) * 0.2 * inputs**-0.5).to(scale)
        zero = (torch.rand(per_group, generator=draw) * 15).to(scale).to(device) if zeroed else None
        return QuantWeight("int4", inputs, data.to(device), scales.to(device), zero, group, order)
    scales = torch.rand(outputs, generator=draw) + 0.1
    if kind == "int8":
        data = torch.randint(-128, 128, size, generator=draw, dtype=torch.int32).to(torch.int8)
        scales *= 0.014 * inputs**-0.5
    else:
        # Numbers so small that they have no full mantissa, too.
        data = (torch.randn(size, generator=draw) * torch.randn(size, generator=draw).exp() * 3).clamp(-448, 448).to(torch.float8_e4m3fn)
        scales *= 0.1 * inputs**-0.5
    return QuantWeight(kind, inputs, data.to(device), scales.to(device), order=order)
