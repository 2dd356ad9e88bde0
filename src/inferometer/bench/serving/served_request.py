"""One request to a server, as its client saw it: when it was due, when its tokens came, or why it failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Arrival:
    """Tokens that came together, at a time in seconds: in one piece of the network's, of `chunks` events that carried any.

    tokens: None where the stream does not say how many.
    """

    at_s: float
    tokens: int | None
    chunks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """due_s: when it was to be sent, by the schedule. sent_s: when it was. ended_s: when its stream was over or it had failed.

    total: the generated tokens, by the server's own count or by the stream's; None if neither tells. prompt_tokens: as the server counts.
    failure: a word for the kind of failure and what shows it, None for a request that was served.
    """

    due_s: float
    sent_s: float
    ended_s: float
    arrivals: tuple[Arrival, ...] = ()
    total: int | None = None
    prompt_tokens: int | None = None
    failure: tuple[str, str] | None = None

    @property
    def tokens(self) -> tuple[int, ...] | None:
        """How many tokens each arrival held; None where that is not known.

        Where the stream does not say, as many chunks as the server counted tokens were one token each.
        """
        counted = [arrival.tokens for arrival in self.arrivals]
        known = [count for count in counted if count is not None]
        if len(known) == len(counted):
            return tuple(known) if self.total in (None, sum(known)) else None
        chunks = tuple(arrival.chunks for arrival in self.arrivals)
        return chunks if self.total == sum(chunks) else None

    @property
    def ttft_ms(self) -> float:
        """From when it was due, so that a client that is late does not flatter the server, to its first token."""
        return 1000 * (self.arrivals[0].at_s - self.due_s)

    @property
    def e2e_ms(self) -> float:
        """From when it was due to its last token."""
        return 1000 * (self.arrivals[-1].at_s - self.due_s)

    @property
    def tpot_ms(self) -> float | None:
        """Time a token after those that came first; None for one that had no more, or tokens that were not counted."""
        first = 1 if self.tokens is None else self.tokens[0]
        if self.total is None or self.total <= first:
            return None
        return 1000 * (self.arrivals[-1].at_s - self.arrivals[0].at_s) / (self.total - first)

    def itl_ms(self) -> Iterator[float]:
        """The time before each token after the first arrival. Tokens that came together share the time before them alike."""
        for (before, after), count in zip(pairwise(self.arrivals), (self.tokens or ())[1:], strict=False):
            for _ in range(count):
                yield 1000 * (after.at_s - before.at_s) / count
