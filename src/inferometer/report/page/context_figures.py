"""The time of a decode step against the tokens that it looks back at."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from inferometer.bench.records.record import Record
from inferometer.report.markup.html import escaped, table
from inferometer.report.page.chart import Chart, Line, Point, scale, steps
from inferometer.report.page.section import Detail, Section, figure, figures
from inferometer.report.page.sweep_figures import failures
from inferometer.report.records.columns import Columns, settings
from inferometer.report.records.phases import DECODE, ms

_SLUG, _TITLE = "context", "Decode against context"
_MOST = 9


def context(record: Record) -> float:
    """The tokens that the mean decode step of a case attends over, its own among them."""
    # The first step over a cache that was filled attends over sequence_length; the first after a prompt over one more.
    first = record.sequence_length + (not getattr(record, "decode_only", False))
    return first + (record.steps - 1) / 2


def context_section(records: Sequence[Record], columns: Columns, detail: Detail) -> Section:
    """A chart for each batch size of a model that was decoded at two contexts or more."""
    groups = _groups(records, columns)
    if not groups:
        return Section(slug=_SLUG, title=_TITLE, missing="no case was decoded at two prompt lengths with everything else alike.")
    most = sorted(groups.items(), key=lambda item: -sum(len(each) for each in item[1].values()))[:_MOST]
    kept = [item for item in groups.items() if item in most]
    charts = [_chart(name, of, columns, detail) for name, of in kept]
    more = (
        f"<p class=about>{len(groups) - len(kept)} more batch sizes are in the table of all cases.</p>" if len(groups) > len(kept) else ""
    )
    about = "What a longer context costs: a step reads the keys and values of all its tokens. A dashed line is the bound."
    folded = detail.folded("As a table", lambda: "".join(_table(name, of) for name, of in kept))
    return Section(slug=_SLUG, title=_TITLE, about=about, content=figures(charts) + more + folded)


def _groups(records: Sequence[Record], columns: Columns) -> dict[str, dict[str, list[Record]]]:
    """{model and batch: {column: its records by ascending context}}, those with two contexts or more in one column."""
    found: dict[tuple[Hashable, Hashable, Hashable, Hashable, Hashable], dict[str, dict[float, Record]]] = {}
    decoding = [record for record in records if record.steps]
    for record in sorted(decoding, key=lambda r: r.started_at):
        asked = settings(record)
        # The stack's own settings are the column's.
        key = (asked["model"], asked["batch_size"], asked["group_size"], asked["num_groups"], asked["weights"])
        found.setdefault(key, {}).setdefault(columns.name(record), {})[context(record)] = record
    named: dict[str, dict[str, list[Record]]] = {}
    for key, of in found.items():
        lines = {name: [each[at] for at in sorted(each)] for name, each in of.items()}
        if any(sum(record.decode_token_ms is not None for record in each) > 1 for each in lines.values()):
            extra = "".join(
                f", {word} {value}" for word, value in zip(("group size", "groups"), key[2:4], strict=True) if value is not None
            )
            name = f"{key[0]}, batch {key[1]}{extra}"
            named[name if name not in named else f"{name}, {key[4]} weights"] = lines
    return named


def _chart(name: str, of: dict[str, list[Record]], columns: Columns, detail: Detail) -> str:
    lines = []
    every = [record for each in of.values() for record in each]
    for column, each in of.items():
        colour = columns.names.index(column)
        points = tuple(_point(record, detail) for record in each if record.decode_token_ms is not None)
        if points:
            lines.append(Line(colour=colour, name=column, points=points))
        limits = tuple(
            Point(x=context(record), y=bound, hint=f"{context(record):g}: {ms(bound)} ms")
            for record in each
            if (bound := DECODE.bound_ms(record)) is not None
        )
        if limits:
            lines.append(Line(colour=colour, name=f"{column}, bound", points=limits, faint=True, labelled=False))
    xs = sorted({context(record) for record in every})
    ends = [end for line in lines for each in line.points for end in (each.y, each.low, each.high) if end is not None]
    chart = Chart(
        title=f"Decode against context: {name}",
        across=steps("context (tokens)", xs),
        up=scale("ms a step", ends),
        lines=tuple(lines),
        failures=failures(every, columns, context),
        ticks=tuple(xs),
    )
    return figure(name, chart.svg())


def _point(record: Record, detail: Detail) -> Point:
    summary = record.decode_token_ms
    assert summary is not None, "only timed records are drawn"
    hint = f"{context(record):g} tokens: {ms(summary.p50)} ms"
    if not detail.spreads:
        return Point(x=context(record), y=summary.p50, hint=hint)
    hint += f" ({ms(summary.min)} to {ms(summary.max)})"
    return Point(x=context(record), y=summary.p50, hint=hint, low=summary.min, high=summary.max)


def _table(name: str, of: dict[str, list[Record]]) -> str:
    at = sorted({context(record) for each in of.values() for record in each})
    cells = {(column, context(record)): record for column, each in of.items() for record in each}
    rows = [[f"{tokens:g}", *(_cell(cells.get((column, tokens))) for column in of)] for tokens in at]
    return f"<h4>{escaped(name)}</h4>" + table(("Context", *of), rows, caption=f"Milliseconds of a decode step, {name}")


def _cell(record: Record | None) -> str:
    if record is None:
        return "-"
    return record.status if record.decode_token_ms is None else f"{ms(record.decode_token_ms.p50)} ms"
