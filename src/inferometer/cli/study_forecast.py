"""What `study run --dry-run` prints: every case with what is expected of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from inferometer.bench.plan.plan import Planned
from inferometer.report.markup.markdown import table


def forecast_json(planned: Planned) -> dict[str, Any]:
    """A case as plain values; unknown is None."""
    question, forecast = planned.question, planned.forecast
    cell, case = question.cell, question.case
    return {
        "part": cell.part,
        "column": cell.column,
        "case_id": case.case_id,
        "model": case.model,
        "backend": case.backend,
        "dtype": case.dtype,
        "quantize": case.quantize,
        "tensor_parallel": case.tensor_parallel,
        "batch_size": case.batch_size,
        "sequence_length": case.sequence_length,
        "decode_length": case.decode_length,
        "runs": question.request.runs,
        "warmups": question.request.warmups,
        "predicted": {"run_s": forecast.run_s, "seconds": forecast.seconds, "peak_memory_bytes": forecast.peak_bytes},
        "time_limit_s": planned.limit_s,
        "status": planned.expected,
        "reason": planned.reason,
    }


def forecast_table(plans: Sequence[Planned]) -> str:
    """All cases as a Markdown table, and what they come to."""
    rows = [
        (
            planned.question.cell.part,
            ", ".join(f"{name} {value}" for name, value in planned.question.cell.point.items()),
            planned.question.cell.column,
            _seconds(planned.forecast.run_s),
            _seconds(planned.forecast.seconds),
            "" if planned.forecast.peak_bytes is None else f"{planned.forecast.peak_bytes / 2**30:.2f}",
            planned.expected + (f": {planned.reason}" if planned.reason is not None else ""),
        )
        for planned in plans
    ]
    counts = Counter(planned.expected for planned in plans)
    running = [planned.forecast.seconds for planned in plans if planned.expected != "skipped"]
    known = [seconds for seconds in running if seconds is not None]
    unknown = len(running) - len(known)
    total = f"{len(plans)} cases: " + ", ".join(f"{count} expected {status}" for status, count in counts.items())
    whole = sum(known)
    time = f"{whole / 60:.1f} minutes" if whole >= 60 else f"{whole:.0f} seconds"
    total += f". The runs take about {time} in all, beside loading"
    total += f"; of {unknown} nothing is known." if unknown else "."
    return table(("part", "case", "column", "run (s)", "all runs (s)", "memory (GiB)", "expected"), rows) + f"\n\n{total}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
