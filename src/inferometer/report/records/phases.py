"""The phases of a case as reports show them: what their time and their rate are called, and what bounds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from inferometer.bench.records.record import Record
from inferometer.bench.records.statistics import Summary


@dataclass(frozen=True, slots=True)
class PhaseNames:
    """`time` and `rate` name a record's latency and throughput."""

    time: str
    name: str
    time_label: str
    rate: str
    rate_label: str

    def summary(self, record: Record) -> Summary | None:
        """The latency's samples."""
        found: Summary | None = getattr(record, self.time)
        return found

    def bound_ms(self, record: Record) -> float | None:
        """The least time that the hardware needs, where it is known."""
        found: float | None = None if record.bound is None else getattr(record.bound, self.time)
        return found

    def share_of_bound(self, record: Record) -> float | None:
        """How much of the hardware's limit the median reaches: 1 is all of it."""
        least, summary = self.bound_ms(record), self.summary(record)
        return None if least is None or summary is None or not summary.p50 else least / summary.p50

    def tok_s(self, record: Record) -> float | None:
        """Tokens a second: the mean of the runs' rates."""
        found: float | None = getattr(record.throughput, self.rate)
        return found

    def binds(self, record: Record) -> str | None:
        """What the bound mostly is."""
        return None if record.bound is None else (record.bound.binds or {}).get(self.time)


FORWARD = PhaseNames("forward_ms", "Forward", "ms a forward", "forward_tok_s", "prompt tokens/s")
PREFILL = PhaseNames("prefill_ms", "Prefill", "ms a prefill", "prefill_prompt_tok_s", "prompt tokens/s")
DECODE = PhaseNames("decode_token_ms", "Decode", "ms a step", "decode_tok_s", "generated tokens/s")
WHOLE = PhaseNames("total_ms", "Whole run", "ms a run", "total_tok_s", "generated tokens/s")
# In the order in which a reader wants them: the rate that a service has, then how long one waits for it to begin.
PHASES: Final = (DECODE, PREFILL, FORWARD, WHOLE)


def phases(records: Iterable[Record]) -> tuple[PhaseNames, ...]:
    """The phases that these records timed. The whole run counts where some of them timed nothing else."""
    kept = [record for record in records if record.status == "ok"]
    timed = [phase for phase in PHASES[:3] if any(phase.summary(record) is not None for record in kept)]
    mixed = any(record.total_ms is not None and record.prefill_ms is None for record in kept)
    return (*timed, *([WHOLE] if mixed else []))


def main_phase(record: Record) -> PhaseNames | None:
    """What one figure of a record is about: decode where it decodes."""
    return next((phase for phase in PHASES if phase.summary(record) is not None), None)


def ms(value: float) -> str:
    """Milliseconds with three digits or more: 0.0123, 1.23, 12.3, 1234."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def short(value: float) -> str:
    """A rate or an amount with three digits or more, never with an exponent: 0.00123, 1.23, 45.6, 12345."""
    if value >= 100:
        return f"{value:.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.6f}".rstrip("0").rstrip(".")
