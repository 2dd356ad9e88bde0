"""A watermark that text-generation-inference's detector finds (Kirchenbauer et al., "A Watermark for Large Language Models", 2023).

The token before decides which part of the vocabulary is green; green tokens get a bonus, so that a text holds more of them than
chance would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inferometer.nn.upload import upload

HASH_KEY = 15485863


@dataclass(frozen=True, slots=True)
class Watermark:
    """gamma: green share of the vocabulary, 0 to 1. delta: what a green token's score gains. Raises ValueError outside that."""

    gamma: float = 0.5
    delta: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"a watermark's gamma must be from 0 to 1, not {self.gamma}")
        if not abs(self.delta) <= torch.finfo(torch.float32).max:
            raise ValueError(f"a watermark's delta must be a finite number, not {self.delta}")

    def green(self, previous: int, vocabulary: int) -> Tensor:
        """The green token ids after the token `previous`, int64 on the CPU: `gamma` of the vocabulary, rounded down.

        The permutation is torch's CPU generator's, whatever device the model is on: it is the one that a detector can repeat.
        """
        generator = torch.Generator().manual_seed(HASH_KEY * previous)
        return torch.randperm(vocabulary, generator=generator)[: int(vocabulary * self.gamma)]


DEFAULT_WATERMARK = Watermark()


@dataclass(frozen=True, slots=True)
class WatermarkEdit:
    """Adds the bonus to the green tokens of `rows`; `previous`, int64 [batch], is read at every step.

    This is the one edit that waits for the device: the permutation is drawn on the host, and takes a few milliseconds for a
    large vocabulary.
    """

    watermark: Watermark
    rows: Sequence[int]
    previous: Tensor

    def apply(self, scores: Tensor) -> Tensor:
        """scores: float32 [batch, vocabulary], changed in place."""
        previous = self.previous.tolist()
        bonus = torch.zeros(len(self.rows), scores.shape[-1])
        for i, row in enumerate(self.rows):
            bonus[i, self.watermark.green(previous[row], scores.shape[-1])] = self.watermark.delta
        return scores.index_add_(0, upload(self.rows, torch.int64, scores.device), upload(bonus, bonus.dtype, scores.device))
