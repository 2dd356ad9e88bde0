"""Prediction against measurement: what the estimator said before each case ran, and what came."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.bench.records.record import Record
from inferometer.estimate.deviation import Deviation
from inferometer.report.markup.html import table
from inferometer.report.page.chart import Chart, Line, Point, scale
from inferometer.report.page.section import Detail, Section, figure, figures
from inferometer.report.records.columns import Columns, length
from inferometer.report.records.expectation import FIGURES, Figure, error, interval, measured, predicted
from inferometer.report.records.phases import short

_SLUG, _TITLE = "prediction", "Prediction against measurement"


def prediction_section(records: Sequence[Record], columns: Columns, detail: Detail) -> Section:
    """A chart a figure, every case a mark."""
    charts = [chart for each in FIGURES if (chart := _chart(each, records, columns, detail))]
    if not charts:
        return Section(slug=_SLUG, title=_TITLE, missing="no record has both a measured figure and a prediction of it.")
    about = (
        "On the dashed line a prediction is exact; above it the case was faster or smaller than expected. A mark's vertical line is the "
        "interval that the estimator gave. Predictions were made before the case ran, and stand in the records."
    )
    return Section(
        slug=_SLUG, title=_TITLE, about=about, content=figures(charts) + detail.folded("As a table", lambda: _table(records, columns))
    )


def _chart(each: Figure, records: Sequence[Record], columns: Columns, detail: Detail) -> str:
    shown = [record for record in records if error(record, each) is not None]
    if not shown:
        return ""
    lines = []
    for place, name in enumerate(columns.names):
        points = tuple(_point(record, each, detail) for record in shown if columns.name(record) == name)
        if points:
            lines.append(Line(colour=place, name=name, points=points, joined=False, labelled=False))
    xs = [point.x for line in lines for point in line.points]
    ys = [end for line in lines for point in line.points for end in (point.y, point.low, point.high) if end is not None and end > 0]
    both = [*xs, *ys]
    log = max(both) > 4 * min(both)
    # The same range on both, so that the line of exact predictions goes from corner to corner.
    across, up = scale(f"measured ({each.unit})", both, log=log), scale(f"predicted ({each.unit})", both, log=log)
    found = Deviation.of([(record.case_id, measured(record, each) or 0.0, predicted(record, each) or 0.0) for record in shown])
    note = f"mean error {100 * found.mean:.1f}\u00a0%, worst {100 * found.worst:.0f}\u00a0%"
    chart = Chart(title=f"{each.title}: predicted against measured", across=across, up=up, lines=tuple(lines), diagonal=True)
    return figure(each.title, chart.svg(), note=note)


def _point(record: Record, each: Figure, detail: Detail) -> Point:
    came, said, ends = measured(record, each) or 0.0, predicted(record, each) or 0.0, interval(record, each)
    hint = f"batch {record.batch_size}: {short(came)}, predicted {short(said)} {each.unit}"
    if not detail.spreads:
        return Point(x=came, y=said, hint=hint)
    hint += f" ({100 * (said / came - 1):+.1f} %)"
    if ends is None or ends[0] <= 0:
        return Point(x=came, y=said, hint=hint)
    return Point(x=came, y=said, hint=f"{hint}, expected {short(ends[0])} to {short(ends[1])}", low=ends[0], high=ends[1])


def _table(records: Sequence[Record], columns: Columns) -> str:
    shown = [each for each in FIGURES if any(error(record, each) is not None for record in records)]
    rows = []
    for record in records:
        if any(error(record, each) is not None for each in shown):
            cells = [_cell(record, each) for each in shown]
            rows.append([columns.name(record), record.model, str(record.batch_size), length(record), *cells])
    header = ("Column", "Model", "Batch", "Tokens", *(f"{each.title}: measured, predicted ({each.unit})" for each in shown))
    return table(header, rows, caption="Measured and predicted figures of every case")


def _cell(record: Record, each: Figure) -> str:
    came, said, off = measured(record, each), predicted(record, each), error(record, each)
    if came is None or said is None or off is None:
        return "-"
    ends = interval(record, each)
    within = "" if ends is None else f", {short(ends[0])} to {short(ends[1])}"
    return f"{short(came)}, {short(said)} ({100 * off:+.1f} %{within})"
