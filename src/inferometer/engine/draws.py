"""The random numbers of a batch, drawn on the host ahead of their use and kept while the batch changes around them.

Philox is some hundred small operations, whatever it is asked for: too many for every step, and far too many launches for a
device. So each row holds numbers for some time ahead, and only rows that run out draw again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inferometer.engine.random import signed, uniform

DRAWS = 64
"""Steps for which one plan holds random numbers."""

AHEAD = 2 * DRAWS
"""Numbers that a row draws at once: in a batch that changes at every step, few rows run out at any one of them."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Numbers of each row, on the CPU. seeds: int64 [rows], as two's complement. starts: int64 [rows], the position of the first
    number that a row holds. numbers: float64 [rows, AHEAD]; both are changed in place as rows draw.
    """

    seeds: Tensor
    starts: Tensor
    numbers: Tensor

    @classmethod
    def build(cls, seeds: Sequence[int]) -> Draws:
        """Rows that hold nothing yet; they draw when somebody asks."""
        rows = len(seeds)
        keys = torch.tensor([signed(seed) for seed in seeds], dtype=torch.int64)
        return cls(keys, torch.full((rows,), -AHEAD), torch.zeros(rows, AHEAD, dtype=torch.float64))

    def select(self, index: Tensor) -> Draws:
        """The rows at `index`, int64 [rows to keep] on the CPU."""
        return Draws(self.seeds.index_select(0, index), self.starts.index_select(0, index), self.numbers.index_select(0, index))

    def extend(self, other: Draws) -> Draws:
        """These rows followed by those of `other`."""
        pairs = ((self.seeds, other.seeds), (self.starts, other.starts), (self.numbers, other.numbers))
        return Draws(*(torch.cat(pair) for pair in pairs))

    def window(self, positions: Tensor, wanted: Tensor) -> Tensor:
        """The numbers of the next DRAWS positions of each row, float64 [rows, DRAWS]; what rows that are not `wanted` get is open.

        positions: int64 [rows], the first of them. wanted: bool [rows]. Both on the CPU.
        """
        held = positions - self.starts
        short = wanted & ((held < 0) | (held > AHEAD - DRAWS))
        if bool(short.any()):
            index = short.nonzero().squeeze(-1)
            first = positions.index_select(0, index)
            self.numbers[index] = uniform(self.seeds.index_select(0, index)[:, None], first[:, None] + torch.arange(AHEAD))
            self.starts[index] = first
            held = positions - self.starts
        return self.numbers.gather(1, held.clamp(0, AHEAD - DRAWS)[:, None] + torch.arange(DRAWS))
