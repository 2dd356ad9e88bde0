"""Latency, throughput and efficiency against batch size: a row of three charts for each phase of each workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from inferometer.bench.records.record import Record
from inferometer.report.markup.html import escaped, table
from inferometer.report.page.chart import MOST_MARKS, Chart, Failure, Line, Point, scale, steps
from inferometer.report.page.section import Detail, Section, figure, figures
from inferometer.report.records.columns import Columns, Sweep, effort
from inferometer.report.records.phases import PhaseNames, ms, phases, short

_FAILED = ("oom", "timeout", "error")


def batch_section(sweeps: Sequence[Sweep], columns: Columns, detail: Detail) -> Section:
    """The charts of every workload that was tried at two batch sizes or more."""
    shown = [sweep for sweep in sweeps if len(sweep.batches) > 1 and phases(sweep.records)]
    if not shown:
        reason = "no workload was measured at more than one batch size" if sweeps else "there is no record"
        return Section(slug="batch", title="Against batch size", missing=f"{reason}.")
    parts = [_workload(sweep, columns, detail) for sweep in shown[: detail.workloads]]
    if len(shown) > detail.workloads:
        parts.append(f"<p class=about>{len(shown) - detail.workloads} more workloads are in the table of all cases.</p>")
    about = (
        "Marks are medians with the fastest and slowest run; a dashed line is the least that the hardware needs (for throughput, the "
        "most that it allows). A cross above a chart is a case that failed, at its batch size."
    )
    if any(len(records) > MOST_MARKS for sweep in shown for records in sweep.columns.values()):
        about += f" Lines of more than {MOST_MARKS} batch sizes have marks at some of them."
    return Section(slug="batch", title="Against batch size", about=about, content="".join(parts))


def _workload(sweep: Sweep, columns: Columns, detail: Detail) -> str:
    parts = [f"<h3>{escaped(sweep.name)} <small>{escaped(effort(sweep.records))}</small></h3>"]
    for phase in phases(sweep.records):
        charts = [_latency(sweep, phase, columns, detail), _throughput(sweep, phase, columns), _efficiency(sweep, phase, columns)]
        parts.append(figures(chart for chart in charts if chart))
        parts.append(detail.folded(f"{phase.name} as a table", partial(_table, sweep, phase)))
    return "".join(parts)


def _latency(sweep: Sweep, phase: PhaseNames, columns: Columns, detail: Detail) -> str:
    def point(record: Record) -> Point | None:
        summary = phase.summary(record)
        if summary is None:
            return None
        hint = f"batch {record.batch_size}: {ms(summary.p50)} ms"
        if not detail.spreads:
            return Point(x=record.batch_size, y=summary.p50, hint=hint)
        hint += f" ({ms(summary.min)} to {ms(summary.max)}, {record.runs} runs)"
        return Point(x=record.batch_size, y=summary.p50, hint=hint, low=summary.min, high=summary.max)

    def least(record: Record) -> Point | None:
        bound = phase.bound_ms(record)
        return None if bound is None else Point(x=record.batch_size, y=bound, hint=f"{record.batch_size}: {ms(bound)} ms")

    return _chart(f"{phase.name}: latency", phase.time_label, sweep, columns, point, least)


def _throughput(sweep: Sweep, phase: PhaseNames, columns: Columns) -> str:
    def point(record: Record) -> Point | None:
        rate = phase.tok_s(record)
        hint = f"batch {record.batch_size}: {0 if rate is None else short(rate)} tok/s"
        return None if rate is None else Point(x=record.batch_size, y=rate, hint=hint)

    def most(record: Record) -> Point | None:
        share, rate = phase.share_of_bound(record), phase.tok_s(record)
        if not share or rate is None:  # a bound of no time is none
            return None
        return Point(x=record.batch_size, y=rate / share, hint=f"{record.batch_size}: {short(rate / share)} tok/s")

    return _chart(f"{phase.name}: throughput", phase.rate_label, sweep, columns, point, most)


def _efficiency(sweep: Sweep, phase: PhaseNames, columns: Columns) -> str:
    def point(record: Record) -> Point | None:
        share = phase.share_of_bound(record)
        if share is None:
            return None
        hint = f"batch {record.batch_size}: {100 * share:.1f} % of the bound ({phase.binds(record) or 'unknown'})"
        return Point(x=record.batch_size, y=100 * share, hint=hint)

    return _chart(f"{phase.name}: efficiency", "% of the bound", sweep, columns, point, None, log=False)


def _chart(
    title: str,
    label: str,
    sweep: Sweep,
    columns: Columns,
    point: Callable[[Record], Point | None],
    limit: Callable[[Record], Point | None] | None,
    *,
    log: bool | None = None,
) -> str:
    """One chart, "" where no record has the figure."""
    lines = []
    for name, records in sweep.columns.items():
        colour = columns.names.index(name)
        points = tuple(each for record in records if (each := point(record)) is not None)
        if points:
            lines.append(Line(colour=colour, name=name, points=points))
        limits = tuple(each for record in records if (each := limit(record)) is not None) if limit else ()
        if limits:
            lines.append(Line(colour=colour, name=f"{name}, bound", points=limits, faint=True, labelled=False))
    if not any(line.labelled for line in lines):
        return ""
    ends = [end for line in lines for each in line.points for end in (each.y, each.low, each.high) if end is not None]
    chart = Chart(
        title=f"{title}: {sweep.name}",
        across=steps("batch size", sweep.batches),
        up=scale(label, ends, log=log),
        lines=tuple(lines),
        failures=failures(sweep.records, columns, lambda record: record.batch_size),
        ticks=tuple(float(size) for size in sweep.batches),
    )
    return figure(title, chart.svg())


def failures(records: Sequence[Record], columns: Columns, place: Callable[[Record], float]) -> tuple[Failure, ...]:
    """The cases that failed, where their values would have been."""
    return tuple(
        Failure(
            colour=columns.colour(record),
            name=columns.name(record),
            x=place(record),
            word=record.status,
            hint=f"batch {record.batch_size}: {record.status}. {(record.evidence or '')[:160]}",
        )
        for record in records
        if record.status in _FAILED
    )


def _table(sweep: Sweep, phase: PhaseNames) -> str:
    of = {(name, record.batch_size): record for name, records in sweep.columns.items() for record in records}
    rows = [[str(size), *(_cell(of.get((name, size)), phase) for name in sweep.columns)] for size in sweep.batches]
    return table(("Batch", *sweep.columns), rows, caption=f"{phase.name} against batch size, {sweep.name}")


def _cell(record: Record | None, phase: PhaseNames) -> str:
    if record is None:
        return "-"
    summary, rate, share = phase.summary(record), phase.tok_s(record), phase.share_of_bound(record)
    if summary is None:
        return record.status if record.status != "ok" else "-"
    words = [f"{ms(summary.p50)} ms", *([f"{short(rate)} tok/s"] if rate is not None else [])]
    return ", ".join([*words, *([f"{100 * share:.0f} %"] if share is not None else [])])
