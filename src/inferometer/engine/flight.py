"""A sweep that has been launched and not yet read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inferometer.engine.sampled import Fetched, Tokens
from inferometer.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of some prompt tokens of a sequence on their way to the host: float32, in order."""

    sequence: Sequence
    logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Flight:
    """What a sweep will have brought: a token for each of `sampled`, and scores of prompt tokens.

    fetched: None if no sequence samples in the sweep. arrived: recorded behind the copies of the scores, None where nothing is under way.
    """

    sampled: tuple[Sequence, ...]
    fetched: Fetched | None
    scores: tuple[Scores, ...]
    arrived: torch.cuda.Event | None

    @property
    def arrivals(self) -> tuple[torch.cuda.Event, ...]:
        """What is recorded behind all that is under way from a device."""
        fetched = None if self.fetched is None else self.fetched.arrived
        return tuple(event for event in (self.arrived, fetched) if event is not None)

    def read(self) -> Tokens:
        """The tokens. Waits until they are there, and for nothing that was launched after them."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.fetched.read() if self.fetched is not None else Tokens([], [], [])


def fetch_scores(sequence: Sequence, logprobs: Tensor) -> Scores:
    """Starts the copy to the host behind the work that is queued now."""
    if not logprobs.is_cuda:
        return Scores(sequence, logprobs)
    host = torch.empty(logprobs.shape, dtype=logprobs.dtype, pin_memory=True)
    return Scores(sequence, host.copy_(logprobs, non_blocking=True))
