"""Order statistics of a few samples, exact and without interpolation: every percentile is a sample that was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The ceil(percent * n / 100)-th of n ascending samples (the nearest-rank definition); `percent` is in 1..100.

    Raises ValueError for no samples, a percentage out of range, or samples that are not ascending.
    """
    if not ordered:
        raise ValueError("a percentile needs at least one sample")
    if not 1 <= percent <= 100:
        raise ValueError(f"percent must be in 1..100, not {percent}")
    if any(a > b for a, b in pairwise(ordered)):
        raise ValueError("samples must be sorted before a percentile is read off them")
    # Integers throughout: ceil(0.9 * 10) in floats would depend on how 0.9 rounds.
    return ordered[-(-percent * len(ordered) // 100) - 1]


@dataclass(frozen=True, slots=True)
class Summary:
    """Samples in the order in which they were measured, and what is said about them. All in the unit of the samples."""

    samples: tuple[float, ...]
    mean: float
    min: float
    max: float
    p50: float
    p90: float
    p99: float

    def __post_init__(self) -> None:
        if not self.min <= self.p50 <= self.p90 <= self.p99 <= self.max:
            raise ValueError(f"percentiles out of order: {self.min} {self.p50} {self.p90} {self.p99} {self.max}")

    @classmethod
    def of(cls, samples: Iterable[float]) -> Summary:
        """Summarises finite, non-negative samples; raises ValueError for others and for none."""
        kept = tuple(float(s) for s in samples)
        for sample in kept:
            if not math.isfinite(sample) or sample < 0:
                raise ValueError(f"samples must be finite and not negative, not {sample}")
        if not kept:
            raise ValueError("a summary needs at least one sample")
        ordered = sorted(kept)
        return cls(
            samples=kept,
            mean=mean(ordered),
            min=ordered[0],
            max=ordered[-1],
            p50=percentile(ordered, 50),
            p90=percentile(ordered, 90),
            p99=percentile(ordered, 99),
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Summary:
        """Reads what `dataclasses.asdict` wrote; raises ValueError where the figures are not those of the samples."""
        summary = cls.of(value["samples"])
        for name in ("mean", "min", "max", "p50", "p90", "p99"):
            if not math.isclose(value[name], getattr(summary, name), rel_tol=1e-12):
                raise ValueError(f"{name} is {value[name]}, but its samples give {getattr(summary, name)}")
        return summary


def mean(samples: Sequence[float]) -> float:
    """The arithmetic mean, correctly summed, and never outside the samples' range by a rounding. Raises ValueError for none."""
    if not samples:
        raise ValueError("a mean needs at least one sample")
    return min(max(math.fsum(samples) / len(samples), min(samples)), max(samples))


def rates(tokens: int, latencies_ms: Sequence[float]) -> tuple[float, ...]:
    """Tokens per second of each run: `tokens` handled in each of `latencies_ms`. Raises ValueError for a latency of zero."""
    if any(latency <= 0 for latency in latencies_ms):
        raise ValueError("a run that took no time has no rate")
    return tuple(tokens * 1000.0 / latency for latency in latencies_ms)
