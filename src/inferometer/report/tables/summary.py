"""Records of any kind as one document: columns, then every workload with its cases and their percentiles, then what failed and why."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.bench.records.record import Record
from inferometer.report.markup.parts import Bullets, Grid, Heading, Paragraph, Part
from inferometer.report.records.beyond_bound import beyond_bound, is_beyond
from inferometer.report.records.columns import Columns, Sweep, effort, repeated, sweeps
from inferometer.report.records.gathering import mixture
from inferometer.report.records.phases import phases
from inferometer.report.tables.benchmark import latency_rows, rate_rows
from inferometer.report.tables.case_rows import CASE_HEADER, COLUMN_HEADER, case_cells, column_cells

_NOTES = (
    "Prefill, Decode: median milliseconds of the prompts with the first token of each, and of a later step. Other: a forward, a whole run "
    "whose prefill and decode share sweeps, or a request to a server.",
    "Spread: slowest less fastest run, over the median. Percentiles are of the sorted runs, without interpolation.",
    "Tokens/s, % of bound, Binds and Predicted are of decode where the case decodes. Tokens/s: mean of the runs' rates; of a prefill and a "
    "forward they count prompt tokens.",
    "% of bound: the least time that the device needs for the work, over the median. Predicted: how far the prediction was off.",
)


def summary_parts(records: Sequence[Record], *, title: str, remarks: Sequence[str] = ()) -> list[Part]:
    """The document. remarks: sentences to stand at its top. Raises ValueError for no records."""
    if not records:
        raise ValueError("a report needs at least one record")
    columns = Columns.of(records)
    parts: list[Part] = [Heading(1, title), Paragraph(about(records))]
    said = [*remarks, *mixture(records), *again(records, columns)]
    if said:
        parts.append(Bullets(tuple(said)))
    parts += [Heading(2, "Columns"), Grid(COLUMN_HEADER, tuple(column_cells(records, columns)))]
    for sweep in sweeps(records, columns):
        parts += [Heading(2, sweep.name), Paragraph(f"{effort(sweep.records).capitalize()}."), *_workload(sweep, columns)]
    failed = [record for record in records if record.status != "ok"]
    if failed:
        lines = tuple(
            f"{columns.name(record)}, {record.model}, batch {record.batch_size}: {record.status}. {record.evidence}" for record in failed
        )
        parts += [Heading(2, "Evidence of failures"), Bullets(lines)]
    return [*parts, Heading(2, "Notes"), Bullets((*_NOTES, *beyond_bound(filter(is_beyond, records))))]


def about(records: Sequence[Record]) -> str:
    """How many cases there are, of what, and when they were measured."""
    ok = sum(record.status == "ok" for record in records)
    devices = ", ".join(dict.fromkeys(record.device_name or record.device or "unknown device" for record in records))
    models = ", ".join(dict.fromkeys(record.model for record in records))
    days = sorted(record.started_at[:10] for record in records)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return f"{len(records)} case{'s' * (len(records) != 1)}, {ok} of them ok: {models} on {devices}, {when}."


def again(records: Sequence[Record], columns: Columns) -> list[str]:
    """That cases were measured more than once, if any was."""
    count = repeated(records, columns)
    return [f"{count} records are of cases that were measured again later: the latest counts."] if count else []


def _workload(sweep: Sweep, columns: Columns) -> list[Part]:
    parts: list[Part] = [Grid(CASE_HEADER, tuple(case_cells(record, columns) for record in sweep.records))]
    for name, records in sweep.columns.items():
        if phases(records):
            parts += [Heading(3, name), Grid(*latency_rows(records)), Grid(*rate_rows(records))]
    return parts
