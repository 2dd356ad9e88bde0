"""Log-probabilities of prompt tokens: on their way to the host, and kept there until their sequence's first token goes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from inferometer.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of some prompt tokens of a sequence on their way to the host: float32 [tokens], in order."""

    sequence: Sequence
    logprobs: Tensor


def fetch_scores(sequence: Sequence, logprobs: Tensor) -> Scores:
    """Starts the copy of float32 [tokens] to the host behind the work that is queued now."""
    if not logprobs.is_cuda:
        return Scores(sequence, logprobs)
    host = torch.empty(logprobs.shape, dtype=logprobs.dtype, pin_memory=True)
    return Scores(sequence, host.copy_(logprobs, non_blocking=True))


class PromptScores:
    """What has arrived, by request, sweep by sweep. Its length is the number of requests that have some here."""

    def __init__(self) -> None:
        self._kept: dict[int, list[float]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, arrived: Iterable[Scores]) -> None:
        """Of sequences that have not ended. The copies must be there."""
        for scores in arrived:
            if not scores.sequence.ended:
                self._kept.setdefault(scores.sequence.request.id, []).extend(scores.logprobs.tolist())

    def take(self, sequence: Sequence) -> tuple[float | None, ...] | None:
        """All of a prompt, once, with its sequence's first token: None for its first token, which nothing came before.

        None where a token has gone out before. Ask only of sequences that want scores.
        """
        return None if sequence.generated else (None, *self._kept.pop(sequence.request.id, ()))

    def drop(self, request_id: int) -> None:
        """Of a request that nobody waits for any more; unknown ids are ignored."""
        self._kept.pop(request_id, None)

    def clear(self) -> None:
        """Of all requests."""
        self._kept.clear()
