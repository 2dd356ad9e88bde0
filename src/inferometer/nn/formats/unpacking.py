"""Nibbles out of the 32-bit integers that GPTQ, AWQ and compressed-tensors checkpoints keep them in."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbours each nibble is, from the lowest (AutoAWQ's gemm layout)."""


def nibbles_along(packed: Tensor, dim: int, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """uint8 from 0 to 15 with `dim` (0 or 1) eight times as long. packed: int32 of two dimensions; order: which of the eight neighbours
    each nibble is, from the lowest.
    """
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    parts = (packed.unsqueeze(-1) >> shifts) & 15
    inverse = torch.tensor([order.index(i) for i in range(8)], device=packed.device)
    parts = parts.index_select(-1, inverse).to(torch.uint8)
    if dim == 1:
        return parts.flatten(1)
    return parts.permute(0, 2, 1).reshape(-1, packed.shape[1])
