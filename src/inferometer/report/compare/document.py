"""A comparison as a document: what changed and by how much, the rule, and what cannot be compared."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence

from inferometer.bench.records.record import Record
from inferometer.model.byte_size import gib
from inferometer.report.compare.comparison import LEVEL, MEMORY_TOLERANCE, SERVED, UNREPEATED, Change, Comparison, served_ms
from inferometer.report.markup.parts import Bullets, Grid, Heading, Paragraph, Part
from inferometer.report.records.columns import Columns, length
from inferometer.report.records.phases import ms

HEADER = ("Verdict", "Column", "Model", "Batch", "Tokens", "Figure", "Old", "New", "New / old", "95 % interval")
_FIGURES = {
    "prefill_ms": "prefill",
    "decode_token_ms": "decode (token)",
    "forward_ms": "forward",
    "total_ms": "whole run",
    "ttft": "first token, served",
    "tpot": "output token, served",
    "e2e": "request, served",
    "peak_memory_bytes": "peak memory",
}
# A list of cases longer than this says only how many more there are.
_LISTED = 40


def comparison_parts(found: Comparison, columns: Columns, *, title: str, remarks: Sequence[str] = ()) -> list[Part]:
    """The document: the verdict first, then every figure, worst first."""
    parts: list[Part] = [Heading(1, title), Paragraph(_verdict(found))]
    if remarks:
        parts.append(Bullets(tuple(remarks)))
    if found.changes:
        parts += [Heading(2, "Figures"), Grid(HEADER, tuple(tuple(row(change, columns)) for change in found.changes))]
    ended = tuple(f"{_case(new, columns)}: {old.status} before, {new.status} now{_because(new)}" for old, new in found.ended)
    for heading, lines in (
        ("Ended otherwise", ended),
        ("New", tuple(_case(record, columns) for record in found.added)),
        ("Missing", tuple(_case(record, columns) for record in found.missing)),
    ):
        if lines:
            parts += [Heading(2, heading), Bullets(_short(lines))]
    return [*parts, Heading(2, "The rule"), Paragraph(rule(found))]


def rule(found: Comparison) -> str:
    """When a figure counts as changed."""
    return (
        f"A time is slower, or faster, if its median changed by more than {100 * found.tolerance:g} % and by more than its runs scatter: "
        "Welch's t-test on the logarithms of the runs, two-sided, with the Benjamini-Hochberg procedure over all times here, so that "
        f"of the changes that it finds at most {100 * LEVEL:g} % are chance. The interval is of the ratio, from the same test. Where "
        "neither side repeated a run (requests to a server are one run), nothing is known of the scatter, and only a change of more than "
        f"{100 * UNREPEATED:g} % counts. A peak of memory changed if it did by more than {100 * MEMORY_TOLERANCE:g} %. A case that was ok "
        "and now fails is a regression. What drifts between two sittings, their runs do not show, and the test cannot see."
    )


def row(change: Change, columns: Columns) -> list[str]:
    """A row under HEADER."""
    record = change.new
    about = [columns.name(record), record.model, str(record.batch_size), length(record), _FIGURES[change.figure]]
    interval = None if change.difference is None else change.difference.interval
    ends = "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
    return [change.verdict, *about, _value(change.old, change.figure), _value(record, change.figure), f"{change.ratio:.3f}", ends]


def rows_csv(found: Comparison, columns: Columns) -> str:
    """Every figure a line, then the cases that have none on one side or ended otherwise."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ("verdict", "column", "model", "batch_size", "tokens", "figure", "old", "new", "ratio", "low", "high", "chance")
    writer.writerow(names)
    for change in found.changes:
        seen = change.difference
        ends = (None, None) if seen is None or seen.interval is None else seen.interval
        figures = [_number(change.old, change.figure), _number(change.new, change.figure), change.ratio, *ends, change.chance]
        writer.writerow([change.verdict, *_about(change.new, columns), change.figure, *figures])
    others = [(new, f"{old.status} to {new.status}") for old, new in found.ended]
    others += [(record, "new") for record in found.added] + [(record, "missing") for record in found.missing]
    for record, verdict in others:
        writer.writerow([verdict, *_about(record, columns), *[None] * 7])
    return out.getvalue()


def _verdict(found: Comparison) -> str:
    times = [change for change in found.changes if change.difference is not None]
    count = Counter(change.verdict for change in times)
    words = [f"{len(times)} times compared: {count['slower']} slower, {count['faster']} faster, {count['alike']} alike within their spread"]
    more = sum(change.verdict == "more" for change in found.changes)
    if more:
        words.append(f"{more} peaks of memory grew")
    if found.broken:
        words.append(f"{len(found.broken)} cases that were ok now fail")
    words.append(f"{len(found.added)} new cases, {len(found.missing)} missing")
    verdict = "Nothing compared" if found.empty else "Regressed" if found.regressed else "No regression"
    return f"{verdict}. {'; '.join(words)}."


def _about(record: Record, columns: Columns) -> list[str]:
    return [columns.name(record), record.model, str(record.batch_size), length(record)]


def _case(record: Record, columns: Columns) -> str:
    return f"{columns.name(record)}, {record.model}, batch {record.batch_size}, {length(record)} tokens"


def _because(record: Record) -> str:
    return "" if record.evidence is None else f" ({record.evidence})"


def _short(lines: tuple[str, ...]) -> tuple[str, ...]:
    return lines if len(lines) <= _LISTED else (*lines[:_LISTED], f"and {len(lines) - _LISTED} more")


def _number(record: Record, figure: str) -> float | None:
    if figure == "peak_memory_bytes":
        return record.peak_memory_bytes.allocated
    if figure in SERVED:
        return served_ms(record, figure)
    found: float = getattr(record, figure).p50
    return found


def _value(record: Record, figure: str) -> str:
    if figure == "peak_memory_bytes":
        return gib(record.peak_memory_bytes.allocated or 0)
    if figure in SERVED:
        return f"{ms(served_ms(record, figure) or 0.0)} ms"
    summary = getattr(record, figure)
    return f"{ms(summary.p50)} ms ({ms(summary.min)} to {ms(summary.max)})"
