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

    fetched: a copy for each of the passes whose sequences sample, one after another; empty if none do. arrived: recorded behind the
    copies of the scores, None where nothing is under way.
    """

    sampled: tuple[Sequence, ...]
    fetched: tuple[Fetched, ...]
    scores: tuple[Scores, ...]
    arrived: torch.cuda.Event | None

    @property
    def arrivals(self) -> tuple[torch.cuda.Event, ...]:
        """What is recorded behind all that is under way from a device."""
        return tuple(event for event in (self.arrived, *(part.arrived for part in self.fetched)) if event is not None)

    def read(self) -> Tokens:
        """The tokens. Waits until they are there, and for nothing that was launched after them."""
        if self.arrived is not None:
            self.arrived.synchronize()
        if len(self.fetched) == 1:
            return self.fetched[0].read()
        tokens = Tokens([], [], [])
        for part in self.fetched:
            token_ids, logprobs, tops = part.read()
            tokens.token_ids.extend(token_ids)
            tokens.logprobs.extend(logprobs)
            tokens.tops.extend(tops)
        return tokens


def fetch_scores(sequence: Sequence, logprobs: Tensor) -> Scores:
    """Starts the copy to the host behind the work that is queued now."""
    if not logprobs.is_cuda:
        return Scores(sequence, logprobs)
    host = torch.empty(logprobs.shape, dtype=logprobs.dtype, pin_memory=True)
    return Scores(sequence, host.copy_(logprobs, non_blocking=True))
