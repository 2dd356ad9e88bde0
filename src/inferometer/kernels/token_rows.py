"""What choosing tokens works on, row by row: how each is drawn, which tokens are left to it, and where it goes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Drawing:
    """Which rows draw, and how; a row that does not has temperature 1. All on the device of the logits, in any strides.

    samples: int64 (rows,), 0 where the best token is taken. temperatures: float32 (rows,), positive. uniforms: float64 (rows, columns) in
    [0, 1). step: int64 (1,), the column of this step; None for the first.
    """

    samples: Tensor
    temperatures: Tensor
    uniforms: Tensor
    step: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which tokens are left to each row: scores above the floor and up to the ceiling, and of those at the floor ids up to the last.

    floors, ceilings: float32 (rows,). last_ids: int32 (rows,). Contiguous.
    """

    floors: Tensor
    last_ids: Tensor
    ceilings: Tensor

    def keep(self, scores: Tensor) -> Tensor:
        """bool (rows, vocabulary)."""
        floors, ceilings = self.floors[:, None], self.ceilings[:, None]
        if scores.device.type == "cpu" and bool((self.last_ids >= scores.shape[1]).all()):
            kept = scores >= floors
        else:
            ids = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)
            kept = (scores > floors) | ((scores == floors) & (ids <= self.last_ids[:, None]))
        if scores.device.type == "cpu" and bool((ceilings == torch.inf).all()):
            return kept
        return kept & (scores <= ceilings)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the tokens of `rows` rows go: one buffer, so that they reach the host in one copy.

    packed: int32 (3 * rows,), the bits of the ids (int64) before those of the log-probabilities (float32).
    seats: int64 (rows,), newest: int64 (seats,): where each row's token is needed next; None if it is not.
    """

    packed: Tensor
    seats: Tensor | None = None
    newest: Tensor | None = None

    @classmethod
    def on(cls, device: torch.device, rows: int) -> Places:
        """New ones, that go nowhere else."""
        return cls(torch.zeros(3 * rows, dtype=torch.int32, device=device))

    def first(self, rows: int) -> Places:
        """The places of so many rows, in the memory of these."""
        return Places(self.packed[: 3 * rows])

    def seated(self, seats: Tensor, newest: Tensor) -> Places:
        """These, with the tokens going to their seats too."""
        return Places(self.packed, seats, newest)

    @property
    def rows(self) -> int:
        """How many there is room for."""
        return self.packed.numel() // 3

    @property
    def token_ids(self) -> Tensor:
        """int64 (rows,)."""
        return self.packed[: 2 * self.rows].view(torch.int64)

    @property
    def logprobs(self) -> Tensor:
        """float32 (rows,)."""
        return self.packed[2 * self.rows :].view(torch.float32)

    def write(self, token_ids: Tensor, logprobs: Tensor) -> None:
        """Puts those of the first rows there, int64 and float32 (rows,), by torch's operations."""
        rows = len(token_ids)
        self.token_ids[:rows] = token_ids
        self.logprobs[:rows] = logprobs
        if self.seats is not None and self.newest is not None:
            self.newest.index_copy_(0, self.seats[:rows], token_ids)
