"""Records beside their predictions, as Markdown and as plain values."""

from __future__ import annotations

from typing import Any

from inferometer.bench.prediction.hindsight import FIGURES, Hindsight, Review
from inferometer.report.markup.markdown import table

_NAMES = {
    "forward_ms": ("forward", "ms", 1.0),
    "prefill_ms": ("prefill", "ms", 1.0),
    "decode_token_ms": ("decode (token)", "ms", 1.0),
    "peak_memory_bytes": ("peak memory", "GiB", float(1 << 30)),
    "j_per_token": ("energy", "J/token", 1.0),
}


def document(review: Review) -> str:
    """The errors by figure, then every figure of every record, then what was not predicted and why."""
    summary = [
        [_NAMES[figure][0], str(found.rows), f"{100 * found.mean:.1f} %", f"{100 * found.worst:.1f} %"]
        for figure in FIGURES
        if (found := review.deviation(figure)) is not None
    ]
    parts = [table(("Figure", "Records", "Mean error", "Worst"), summary)] if summary else ["No figure of these records can be predicted."]
    if review.figures:
        header = ("Model", "Backend", "Device", "Type", "Batch", "Length", "Figure", "Measured", "Predicted", "Error", "Error then")
        parts.append(table(header, [_row(each) for each in review.figures]))
    parts += [f"- {case}: not predicted: {reason}." for case, reason in review.skipped.items()]
    return "\n\n".join(parts) + "\n"


def to_json(review: Review) -> dict[str, Any]:
    """Plain values: errors by figure, and every figure."""
    errors = {figure: found for figure in FIGURES if (found := review.deviation(figure)) is not None}
    return {
        "errors": {
            figure: {"rows": found.rows, "mean": found.mean, "worst": found.worst, "worst_case": found.worst_id}
            for figure, found in errors.items()
        },
        "figures": [
            {
                "case_id": each.record.case_id,
                "figure": each.figure,
                "measured": each.measured,
                "predicted": each.now,
                "predicted_then": each.then,
            }
            for each in review.figures
        ],
        "skipped": dict(review.skipped),
    }


def _row(each: Hindsight) -> list[str]:
    record = each.record
    name, unit, size = _NAMES[each.figure]
    length = f"{record.sequence_length}" + ("" if record.decode_length is None else f"+{record.decode_length}")
    about = [record.model, record.backend, record.device or "-", record.dtype, str(record.batch_size), length, name]
    now = "-" if each.now is None else f"{each.now / size:.4g} {unit}"
    return [*about, f"{each.measured / size:.4g} {unit}", now, _error(each.now, each.measured), _error(each.then, each.measured)]


def _error(predicted: float | None, measured: float) -> str:
    return "-" if predicted is None else f"{100 * (predicted / measured - 1):+.1f} %"
