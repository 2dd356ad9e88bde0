"""Buckets of the histograms: text-generation-inference's, so that its dashboards read ours."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

DURATIONS: Final[Sequence[float]] = tuple(0.0001 * 1.5**power for power in range(1, 36))
"""Seconds, 0.15 ms to 145 s."""

BATCH_SIZES: Final[Sequence[float]] = tuple(float(size) for size in range(1, 1025))


def hundred_steps(most: int) -> Sequence[float]:
    """A hundred equal steps up to `most`."""
    return tuple(most / 100 * step for step in range(1, 101))


class Tally:
    """A histogram for what comes once a token: a search and two additions, where the client library takes locks and walks its buckets."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.sum = 0.0
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    def add(self, value: float) -> None:
        """Takes a value in."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, values up to it), as Prometheus writes them."""
        names = [str(bound) for bound in self._bounds] + ["+Inf"]
        return list(zip(names, accumulate([float(count) for count in self._counts]), strict=True))
