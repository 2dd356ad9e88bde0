"""What was measured and what was expected of it, figure by figure, in units to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inferometer.bench.records.record import Record


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that is both measured and predicted; size: of its unit in the record's."""

    name: str
    title: str
    unit: str
    size: float = 1.0


FIGURES: Final = (
    Figure("decode_token_ms", "Decode, ms a step", "ms"),
    Figure("prefill_ms", "Prefill", "ms"),
    Figure("forward_ms", "Forward", "ms"),
    Figure("peak_memory_bytes", "Peak memory", "GiB", float(1 << 30)),
    Figure("j_per_token", "Energy", "J/token"),
)


def measured(record: Record, figure: Figure) -> float | None:
    """What came, in the figure's unit: the median of a time."""
    if figure.name == "peak_memory_bytes":
        found = record.peak_memory_bytes.allocated
    elif figure.name == "j_per_token":
        found = (record.energy or {}).get("j_per_token")
    else:
        summary = getattr(record, figure.name)
        found = None if summary is None else summary.p50
    return None if not found else float(found) / figure.size


def predicted(record: Record, figure: Figure) -> float | None:
    """What was expected, in the figure's unit."""
    found = None if record.predicted is None else getattr(record.predicted, figure.name)
    return None if not found else float(found) / figure.size


def interval(record: Record, figure: Figure) -> tuple[float, float] | None:
    """Between which values it was expected."""
    ends = None if record.predicted is None else (record.predicted.interval or {}).get(figure.name)
    return None if ends is None else (ends[0] / figure.size, ends[1] / figure.size)


def error(record: Record, figure: Figure) -> float | None:
    """Predicted over measured, less 1; None without both."""
    came, said = measured(record, figure), predicted(record, figure)
    return None if came is None or said is None else said / came - 1
