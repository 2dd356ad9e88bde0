"""Energy of a token against batch size, as counters in the hardware have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inferometer.bench.records.record import Record
from inferometer.report.markup.html import table
from inferometer.report.page.chart import Chart, Line, Point, scale, steps
from inferometer.report.page.section import Detail, Section, figure, figures
from inferometer.report.page.sweep_figures import failures
from inferometer.report.records.columns import Columns, Sweep
from inferometer.report.records.phases import short

_SLUG, _TITLE = "energy", "Energy"
_MOST = 12


def joules(record: Record) -> float | None:
    """Joules a token, measured."""
    found = (record.energy or {}).get("j_per_token")
    return None if not found else float(found)


def energy_section(sweeps: Sequence[Sweep], columns: Columns, detail: Detail) -> Section:
    """A chart a workload whose energy was measured at two batch sizes or more, else its figures as a table."""
    records = [record for sweep in sweeps for record in sweep.records]
    shown = [sweep for sweep in sweeps if any(joules(record) is not None for record in sweep.records)]
    if not shown:
        return Section(slug=_SLUG, title=_TITLE, missing=f"no case has a measured energy: {_why(records)}.")
    charts = [_chart(sweep, columns) for sweep in shown[:_MOST]]
    more = f"<p class=about>{len(shown) - _MOST} more workloads are in the table of all cases.</p>" if len(shown) > _MOST else ""
    bases = Counter(str(record.energy.get("basis")) for record in records if record.energy and joules(record) is not None)
    about = f"Joules a token of prefill and decode together, by {bases.most_common(1)[0][0]}. A dashed line is what the estimator expected."
    folded = detail.folded("As a table", lambda: _table(shown, columns))
    return Section(slug=_SLUG, title=_TITLE, about=about, content=figures(charts) + more + folded)


def _why(records: Sequence[Record]) -> str:
    said = Counter(str(record.energy.get("basis")).removeprefix("none: ") for record in records if record.energy)
    return "; ".join(reason for reason, _ in said.most_common(2)) or "the records say nothing of it"


def _chart(sweep: Sweep, columns: Columns) -> str:
    lines = []
    for name, records in sweep.columns.items():
        colour = columns.names.index(name)
        points = tuple(
            Point(x=record.batch_size, y=found, hint=f"batch {record.batch_size}: {short(found)} J/token")
            for record in records
            if (found := joules(record)) is not None
        )
        if points:
            lines.append(Line(colour=colour, name=name, points=points))
        expected = tuple(
            Point(x=record.batch_size, y=said, hint=f"{record.batch_size}: {short(said)}")
            for record in records
            if record.predicted is not None and (said := record.predicted.j_per_token)
        )
        if points and expected:
            lines.append(Line(colour=colour, name=f"{name}, expected", points=expected, faint=True, labelled=False))
    chart = Chart(
        title=f"Energy a token: {sweep.name}",
        across=steps("batch size", sweep.batches),
        up=scale("J/token", [point.y for line in lines for point in line.points]),
        lines=tuple(lines),
        failures=failures(sweep.records, columns, lambda record: record.batch_size),
        ticks=tuple(float(size) for size in sweep.batches),
    )
    return figure(sweep.name, chart.svg())


def _table(sweeps: Sequence[Sweep], columns: Columns) -> str:
    rows = []
    for record in (record for sweep in sweeps for record in sweep.records):
        energy = record.energy or {}
        if joules(record) is not None:
            cells = [_joules(energy.get(name)) for name in ("j_per_token", "prefill_j", "decode_j")]
            expected = _joules(None if record.predicted is None else record.predicted.j_per_token)
            rows.append([columns.name(record), record.model, str(record.batch_size), *cells, expected, str(energy.get("basis", "-"))])
    header = ("Column", "Model", "Batch", "J/token", "Prefill (J)", "Decode (J)", "J/token expected", "Measured by")
    return table(header, rows, caption="Energy of every case that has it")


def _joules(value: float | None) -> str:
    return "-" if value is None else short(value)
