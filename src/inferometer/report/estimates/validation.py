"""The estimator's errors as documents: a table by regime beside simpler rules and gates, and every row of it. Pure functions."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from inferometer.estimate.deviation import Deviation
from inferometer.estimate.explanation import Explanation
from inferometer.estimate.operations import Series
from inferometer.estimate.validation import BOARD, CONSTANT, HELD, METHODS, OURS, PEAK, PUBLISHED, SCALED, Report, Scored
from inferometer.report.markup.markdown import table

_RULES = (PEAK, CONSTANT, BOARD, SCALED, HELD, PUBLISHED)
_UNITS = {"time_ms": "ms", "peak_gib": "GiB", "j_per_token": "J/token", "power_w": "W"}


def document(reports: Sequence[Report], *, operations: Sequence[Series] = (), explained: Sequence[Explanation] = ()) -> str:
    """A page with the table by regime, what its words mean, single operations, the worst rows of missed gates op by op, and every row."""
    parts = [
        "# Validation",
        "Written by `python benchmarks/validation.py`; `inferometer validate` prints the same. Errors are relative to the measured value, "
        "over rows that no constant was fitted on.",
        regime_table(reports),
        legend(reports),
    ]
    if operations:
        parts.append(f"## Single operations\n\n{operation_table(operations)}")
    if explained:
        parts.append("## Missed gates, op by op\n\n" + "\n\n".join(map(explanation_table, explained)))
    parts += [f"## {report.regime.name}: {report.regime.title}\n\n{row_table(report)}" for report in reports]
    return "\n\n".join(parts) + "\n"


def regime_table(reports: Sequence[Report]) -> str:
    """A row a regime: mean and worst error of ours, the gate, and the mean error of each simpler rule."""
    rules = [rule for rule in _RULES if any(report.deviation(rule) for report in reports)]
    header = [
        "Regime",
        "What",
        "Held out",
        "Mean",
        "Worst",
        "Worst row",
        "Gate",
        "Stretch",
        "Verdict",
        "Published",
        *map(str.capitalize, rules),
    ]
    return table(header, [_regime_row(report, rules) for report in reports])


def row_table(report: Report) -> str:
    """Every row of a regime: measured, predicted, and each rule's error; fitted rows and those shown apart say so."""
    rules = [rule for rule in _RULES if any(rule in each.predictions for each in report.scored)]
    unit = _UNITS[report.regime.quantity]
    ways = len(report.keys) > 1
    header = ["Row", *["Left out"] * ways, f"Measured ({unit})", f"Predicted ({unit})", "Error", *map(str.capitalize, rules), "Note"]
    rows = []
    for each in report.scored:
        cells = [each.row.id, *[str(each.key)] * ways, _figure(each.row.value), _figure(each.predictions.get(OURS))]
        cells += [_signed(each, method) for method in (OURS, *rules)]
        rows.append([*cells, _note(each)])
    sources = "; ".join(dict.fromkeys(each.row.source for each in report.scored))
    return f"{table(header, rows)}\n\nSources: {sources}." if sources else table(header, rows)


def operation_table(operations: Sequence[Series]) -> str:
    """A row a series of single operations: the error of the expected time, and that of the roofline."""
    header = ("Series", "Operations", "Mean", "Worst", "Worst operation", "Peak roofline")
    rows = [
        [
            each.name,
            str(len(each.timed)),
            _percent(each.expected.mean),
            _percent(each.expected.worst),
            each.expected.worst_id,
            _percent(each.bound.mean),
        ]
        for each in operations
    ]
    sources = "; ".join(dict.fromkeys(timed.operation.source for each in operations for timed in each.timed))
    return f"{table(header, rows)}\n\nThey inform about the parts of an estimate and gate nothing. Sources: {sources}."


def explanation_table(explained: Explanation) -> str:
    """The worst row of a missed gate: where the expected time goes, op by op, and what is left to the measured one."""
    row, unit = explained.row, _UNITS[explained.row.quantity]
    said = f"measured {_figure(row.value)} {unit}, predicted {_figure(explained.predicted)} {unit}"
    head = f"{row.regime}, {row.id}: {said} ({100 * (explained.predicted / row.value - 1):+.1f} %)."
    header = ("Op", "Expected (ms)", "Share", "Bound (ms)", "Binds")
    rows = [
        [part.name, _figure(part.ms), f"{100 * part.ms / explained.device_ms:.0f} %", _figure(part.bound_ms), part.binds]
        for part in explained.parts
    ]
    rest = f"The device works {_figure(explained.device_ms)} ms of it by these ops; the rest is the host and what it waits for."
    notes = [f"Known of the row: {row.note}"] if row.note else []
    return "\n\n".join([head, table(header, rows), " ".join([rest, *notes])])


def legend(reports: Sequence[Report]) -> str:
    """What the columns mean, what is missing, and the rows with known defects that count all the same."""
    lines = [
        "- Mean, Worst: of the absolute error on held-out rows. Where rows are left out in two ways, by the way with the larger mean.",
        "- Gate, Stretch: what is asked for and hoped for of the mean (and, where a second figure stands, of the worst row). Verdict: "
        "holds, missed, or informs for a regime that gates nothing.",
        f"- {PEAK.capitalize()}: the datasheet's rates, op by op. {CONSTANT.capitalize()}: the same over one efficiency, fitted on the "
        "rows that the split allows.",
        f"- {BOARD.capitalize()}: the power limit over the measured tokens a second. {SCALED.capitalize()}: the same times one factor, "
        "fitted alike.",
        f"- {HELD.capitalize()}: bytes of the weights and of the KV cache. {PUBLISHED.capitalize()}: the source's own, in sample.",
    ]
    lines += [
        f"- {report.regime.name}: {len(report.missing)} held-out rows have no prediction ({report.missing[0].missing})."
        for report in reports
        if report.missing
    ]
    return "\n".join(lines)


def rows_csv(reports: Sequence[Report]) -> str:
    """Every row as comma-separated values, one line a row and way of leaving out."""
    out = io.StringIO()
    fields = ["regime", "row", "left_out", "stack", "device", "gpus", "model", "dtype", "mode", "batch", "prompt_tokens", "new_tokens"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*fields, "quantity", "measured", *(method.replace(" ", "_") for method in METHODS), "held_out", "source", "note"])
    for report in reports:
        for each in report.scored:
            row = each.row
            about = [row.regime, row.id, each.key or "", row.stack, row.device, row.gpus, row.model, row.dtype, row.mode, row.batch]
            said = [each.predictions.get(method, "") for method in METHODS]
            held = "yes" if each.held_out else "no"
            figures = [row.prompt_tokens, row.new_tokens, row.quantity, row.value, *said]
            writer.writerow([*about, *figures, held, row.source, row.note or ""])
    return out.getvalue()


def to_json(reports: Sequence[Report], *, rows: bool) -> dict[str, Any]:
    """Plain values: each regime with its gate and errors by method; with `rows`, its rows."""
    return {"regimes": [_regime_json(report, rows=rows) for report in reports]}


def verdict(report: Report) -> str:
    """ "holds", "missed", or "informs" for a regime that gates nothing; the last with what its figure would be judged as."""
    if report.passes is None:
        return "informs"
    judged = "holds" if report.passes else "missed"
    return judged if report.regime.gates else f"informs ({judged})"


def _regime_row(report: Report, rules: Sequence[str]) -> list[str]:
    regime, ours = report.regime, report.deviation()
    held = sum(each.held_out for each in report.scored) // len(report.keys)
    figures = [_percent(ours.mean), _percent(ours.worst), ours.worst_id] if ours else ["-"] * 3
    gate = _share(regime.gate) + ("" if regime.worst_gate is None else f", worst {_share(regime.worst_gate)}")
    said = [report.deviation(rule) for rule in rules]
    means = ["-" if each is None else _percent(each.mean) for each in said]
    count = f"{held} of {len(report.scored) // len(report.keys)}"
    return [regime.name, regime.title, count, *figures, gate, _share(regime.stretch), verdict(report), regime.published or "-", *means]


def _regime_json(report: Report, *, rows: bool) -> dict[str, Any]:
    regime = report.regime
    errors = {method: _deviation_json(found) for method in METHODS if (found := report.deviation(method)) is not None}
    ways = {
        str(key): _deviation_json(found) for key in report.keys if key is not None and (found := report.deviation_of(OURS, key)) is not None
    }
    value: dict[str, Any] = {
        "regime": regime.name,
        "title": regime.title,
        "quantity": regime.quantity,
        "published": regime.published,
        "gate": regime.gate,
        "worst_gate": regime.worst_gate,
        "stretch": regime.stretch,
        "gates": regime.gates and regime.gate is not None,
        "holds": report.passes,
        "errors": errors,
        "left_out": ways,
        "missing": len(report.missing),
    }
    if rows:
        value["rows"] = [_scored_json(each) for each in report.scored]
    return value


def _deviation_json(found: Deviation) -> dict[str, Any]:
    return {"rows": found.rows, "mean": found.mean, "worst": found.worst, "worst_row": found.worst_id, "low": found.low, "high": found.high}


def _scored_json(each: Scored) -> dict[str, Any]:
    row = each.row
    return {
        "row": row.id,
        "left_out": each.key,
        "held_out": each.held_out,
        "fitted": row.counted and not each.held_out,
        "measured": row.value,
        "predicted": each.predictions.get(OURS),
        "error": None if OURS not in each.predictions else each.predictions[OURS] / row.value - 1,
        "rules": {method: value for method, value in each.predictions.items() if method != OURS},
        "missing": each.missing,
        "note": row.note,
        "source": row.source,
    }


def _note(each: Scored) -> str:
    marks = [] if each.held_out else ["fitted" if each.row.counted else "shown apart"]
    return "; ".join([*marks, *filter(None, (each.missing, each.row.note))])


def _signed(each: Scored, method: str) -> str:
    said = each.predictions.get(method)
    return "-" if said is None else f"{100 * (said / each.row.value - 1):+.1f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %" if share < 0.01 else f"{100 * share:.1f} %"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:g} %"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"
