"""Attention in parts: what programs that each saw some of the keys have found, unjoined."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadParts:
    """What a row's heads have found among `keys` keys each.

    partial: (rows, parts, heads, head_size), the mean of the values in a part, by the softmax of their scores. mass: float32
    (rows, parts, heads), the logarithm to base 2 of the sum of exponentials that it was divided by. contexts: int32 (rows,), keys of a row:
    parts behind their end hold nothing, whatever lies there.
    """

    partial: Tensor
    mass: Tensor
    contexts: Tensor
    keys: int

    @property
    def rows(self) -> int:
        """Rows that ask."""
        return self.partial.shape[0]

    @property
    def parts(self) -> int:
        """Parts that there is room for."""
        return self.partial.shape[1]

    @property
    def head_size(self) -> int:
        """Of each head."""
        return self.partial.shape[3]

    def joined(self) -> Tensor:
        """(rows, heads * head_size), by torch's operations: the reference of what launches that take parts begin with."""
        start = torch.arange(self.parts, device=self.mass.device) * self.keys
        seen = (start < self.contexts[:, None])[:, :, None]
        mass = self.mass.masked_fill(~seen, -torch.inf)
        share = torch.exp2(mass - mass.amax(1, keepdim=True).clamp(min=-1e38))
        partial = self.partial.float().masked_fill(~seen[..., None], 0)
        whole = share.sum(1).clamp(min=torch.finfo(torch.float32).tiny)
        return ((partial * share[..., None]).sum(1) / whole[..., None]).to(self.partial.dtype).flatten(1)
