"""One backend's part of a round: its samples as they come in, or how it failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from inferometer.bench.backend import Backend
from inferometer.bench.case import Case
from inferometer.bench.energy import EnergyMeter
from inferometer.bench.memory import PeakMeter
from inferometer.bench.record import Checked
from inferometer.bench.statistics import Summary


@dataclass(frozen=True, slots=True)
class Failure:
    """How a case ended that gave no times, and what shows it."""

    status: Literal["oom", "error"]
    evidence: str


@dataclass(frozen=True, slots=True)
class Unopened:
    """A backend that could not load the model; its cases end with this failure, and the others run."""

    stack_version: str
    failure: Failure


@dataclass(slots=True)
class Column:
    """One backend's part of a batch size, as it fills up. Times in seconds."""

    case: Case
    backend: Backend
    meter: PeakMeter
    energy: EnergyMeter
    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    checked: Checked | None = None
    failure: Failure | None = None

    def times(self) -> dict[str, Summary]:
        """The latencies of the measured runs in milliseconds, by the record's names."""
        milliseconds = {
            "prefill_ms": [1000 * s for s in self.prefill],
            "decode_total_ms": [1000 * s for s in self.decode],
            "decode_token_ms": [1000 * s / max(self.case.steps, 1) for s in self.decode],
            "total_ms": [1000 * (p + d) for p, d in zip(self.prefill, self.decode, strict=True)],
            "forward_ms": [1000 * s for s in self.forward],
        }
        if self.case.forward_only:
            return {"forward_ms": Summary.of(milliseconds["forward_ms"])}
        if not self.case.steps:
            # No step was made, so what lies between the two clock readings is no decode time.
            return {"prefill_ms": Summary.of(milliseconds["prefill_ms"]), "total_ms": Summary.of(milliseconds["prefill_ms"])}
        return {name: Summary.of(samples) for name, samples in milliseconds.items() if name != "forward_ms"}
