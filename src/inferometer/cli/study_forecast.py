"""What `study run --dry-run` prints: every case with what is expected of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from inferometer.bench.plan.plan import Planned
from inferometer.report.markup.markdown import table


def forecast_json(planned: Planned, same_run_as: str | None) -> dict[str, Any]:
    """A case as plain values; unknown is None. same_run_as: the part of the case whose run answers it, so that it takes no time."""
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
        "predicted": {"run_s": forecast.run_s, "seconds": _seconds(planned, same_run_as), "peak_memory_bytes": forecast.peak_bytes},
        "time_limit_s": planned.limit_s,
        "same_run_as": same_run_as,
        "status": planned.expected,
        "reason": planned.reason,
    }


def forecast_table(plans: Sequence[Planned], same_run_as: Sequence[str | None]) -> str:
    """All cases as a Markdown table, and what they come to. same_run_as: as in `forecast_json`, of each."""
    rows = [
        (
            planned.question.cell.part,
            ", ".join(f"{name} {value}" for name, value in planned.question.cell.point.items()),
            planned.question.cell.column,
            _shown(planned.forecast.run_s),
            _shown(_seconds(planned, part)),
            "" if planned.forecast.peak_bytes is None else f"{planned.forecast.peak_bytes / 2**30:.2f}",
            _expected(planned, part),
        )
        for planned, part in zip(plans, same_run_as, strict=True)
    ]
    counts = Counter(planned.expected for planned in plans)
    running = [_seconds(planned, part) for planned, part in zip(plans, same_run_as, strict=True) if planned.expected != "skipped"]
    known = [seconds for seconds in running if seconds is not None]
    unknown = len(running) - len(known)
    total = f"{len(plans)} cases: " + ", ".join(f"{count} expected {status}" for status, count in counts.items())
    again = sum(part is not None and planned.expected != "skipped" for planned, part in zip(plans, same_run_as, strict=True))
    total += f"; {again} of them answered by the same run as a case of another part" if again else ""
    whole = sum(known)
    time = f"{whole / 60:.1f} minutes" if whole >= 60 else f"{whole:.0f} second{'' if round(whole) == 1 else 's'}"
    total += f". The runs take about {time} in all, beside loading"
    total += f"; of {unknown} nothing is known." if unknown else "."
    return table(("part", "case", "column", "run (s)", "all runs (s)", "memory (GiB)", "expected"), rows) + f"\n\n{total}"


def _seconds(planned: Planned, same_run_as: str | None) -> float | None:
    """What the case adds to the study's time; None if nobody knows."""
    return planned.forecast.seconds if same_run_as is None else 0.0


def _expected(planned: Planned, same_run_as: str | None) -> str:
    reasons = [] if planned.reason is None else [planned.reason]
    if same_run_as is not None and planned.expected != "skipped":
        reasons.append(f"the same run as in {same_run_as}")
    return ": ".join([planned.expected, *([", ".join(reasons)] if reasons else [])])


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
