"""One backend's part of a round: its samples as they come in, or how it failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from inferometer.bench.backends.backend import Backend, PageUse
from inferometer.bench.measurement.energy import EnergyMeter
from inferometer.bench.measurement.peak_memory import PeakMeter
from inferometer.bench.measurement.timed_run import Times
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Checked
from inferometer.bench.records.statistics import Summary


@dataclass(frozen=True, slots=True)
class Failure:
    """How a case ended that gave no times, and what shows it."""

    status: Literal["oom", "error", "skipped"]
    evidence: str


@dataclass(frozen=True, slots=True)
class Unopened:
    """A backend that could not load the model, or is not installed; its cases end with this failure, and the others run."""

    stack_version: str
    failure: Failure


@dataclass(slots=True)
class Column:
    """One backend's part of a batch size, as it fills up. Times in seconds.

    whole: of runs whose prefill and decode have no times of their own, and begun: as in `Times`, of all of them or none. pages: of the run
    that had the most in use. link_bytes: that came from the host in all measured runs, None where nothing does. unsteady: runs that were
    not taken in, as something was made in them that the next one found. sensors: what they said right after the last measured run, when
    clocks are still what the work has left of them.
    """

    case: Case
    backend: Backend
    meter: PeakMeter
    energy: EnergyMeter
    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    begun: list[tuple[float, int]] = field(default_factory=list)
    pages: PageUse | None = None
    link_bytes: int | None = None
    checked: Checked | None = None
    failure: Failure | None = None
    unsteady: int = 0
    unsteady_s: float = 0.0
    sensors: dict[str, object] | None = None

    @property
    def measured(self) -> int:
        """Runs that were taken in."""
        return max(len(self.prefill), len(self.decode), len(self.whole), len(self.forward))

    def add(self, times: Times, pages: PageUse | None, link_bytes: int | None = None) -> None:
        """Takes in a measured run."""
        if link_bytes is not None:
            self.link_bytes = (self.link_bytes or 0) + link_bytes
        for samples, seconds in (
            (self.prefill, times.prefill),
            (self.decode, times.decode),
            (self.whole, times.whole),
            (self.forward, times.forward),
        ):
            if seconds is not None:
                samples.append(seconds)
        if times.begun is not None:
            self.begun.append(times.begun)
        if pages is not None and (self.pages is None or pages.peak > self.pages.peak):
            self.pages = pages

    @property
    def seconds(self) -> float:
        """Of all measured runs."""
        return sum(map(sum, (self.prefill, self.decode, self.whole, self.forward)))

    @property
    def first_tokens(self) -> int | None:
        """Tokens that there were when every row had its first, where all runs agree on it."""
        counts = {tokens for _, tokens in self.begun}
        return counts.pop() if len(counts) == 1 and len(self.begun) == len(self.whole) else None

    def times(self) -> dict[str, Summary]:
        """The latencies of the measured runs in milliseconds, by the record's names."""
        if self.whole:
            total = {"total_ms": Summary.of(1000 * s for s in self.whole)}
            if self.first_tokens is None:
                return total
            return {"first_tokens_ms": Summary.of(1000 * s for s, _ in self.begun), **total}
        milliseconds = {
            "prefill_ms": [1000 * s for s in self.prefill],
            "decode_total_ms": [1000 * s for s in self.decode],
            "decode_token_ms": [1000 * s / max(self.case.steps, 1) for s in self.decode],
            "total_ms": [1000 * (p + d) for p, d in zip(self.prefill, self.decode, strict=False)],
            "forward_ms": [1000 * s for s in self.forward],
        }
        if self.case.decode_only:
            return {name: Summary.of(milliseconds[name]) for name in ("decode_total_ms", "decode_token_ms")}
        if self.case.forward_only:
            return {"forward_ms": Summary.of(milliseconds["forward_ms"])}
        if not self.case.steps:
            # No step was made, so what lies between the two clock readings is no decode time.
            return {"prefill_ms": Summary.of(milliseconds["prefill_ms"]), "total_ms": Summary.of(milliseconds["prefill_ms"])}
        return {name: Summary.of(samples) for name, samples in milliseconds.items() if name != "forward_ms"}
