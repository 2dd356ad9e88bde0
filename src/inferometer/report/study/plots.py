"""The plots that a study asks for, each one SVG image of its records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from inferometer.bench.records.record import Record
from inferometer.bench.study.cell import Template
from inferometer.bench.study.layout import ColumnSpec, PlotSpec
from inferometer.bench.study.study import Study
from inferometer.bench.study.table import plot_of
from inferometer.report.plots.bar_plot import BarSeries, grouped_bars
from inferometer.report.plots.kinds import Series, sweep
from inferometer.report.study.columns import Row, apart, columns_of, heading_of, rows_in
from inferometer.report.study.entries import Entries
from inferometer.report.study.footnotes import Footnotes
from inferometer.report.study.part_records import PartRecords


def plots(study: Study, records: Iterable[Record]) -> Mapping[str, tuple[str, str]]:
    """Of each plot that has a figure to show, by the name of its file: its title and the image.

    Raises ValueError for a plot that the study's file describes wrongly, naming the key.
    """
    mine = [record for record in records if record.study in (None, study.name)]
    found: dict[str, tuple[str, str]] = {}
    for spec in (plot_of(values) for values in study.plots):
        part = PartRecords.of(study, spec.part, mine)
        for each in apart(spec, part):
            image = plot(each, part.where(each.where))
            if image is not None:
                name = re.sub(r"[^a-z0-9]+", "-", each.title.lower()).strip("-")
                found[f"{len(found) + 1}-{name}.svg"] = (each.title, image)
    return found


def plot(spec: PlotSpec, records: PartRecords) -> str | None:
    """The image, None where nothing of it was measured."""
    columns, rows = columns_of(spec, records, "measured"), rows_in(spec, records, "measured")
    entries = Entries(spec, records, "measured", Footnotes())
    values = [[entries.entry(row, column, None).value for row in rows] for column in columns]
    if not any(value is not None for column, line in zip(columns, values, strict=True) if not _foreign(column) for value in line):
        return None
    x_label = ", ".join(row.heading for row in spec.rows)
    if spec.kind == "bars":
        return grouped_bars(
            spec.title,
            x_label,
            _unit(spec, columns),
            [" / ".join(row.labels) for row in rows],
            [
                BarSeries(name=heading_of(column), values=tuple(line), pale=_foreign(column))
                for column, line in zip(columns, values, strict=True)
            ],
            log=spec.log,
        )
    places = [_place(row, index) for index, row in enumerate(rows)]
    series = [
        Series(name=heading_of(column), points=tuple((x, y) for x, y in zip(places, line, strict=True) if y is not None))
        for column, line in zip(columns, values, strict=True)
    ]
    return sweep(spec.title, x_label, _unit(spec, columns), [each for each in series if each.points], log=spec.log)


def _foreign(column: ColumnSpec) -> bool:
    """Whether its figures were not measured here."""
    cells = () if column.cell is None else column.cell.fields
    return bool(column.given) or column.stack is not None or column.published_only or any(each.source != "measured" for each in cells)


def _unit(spec: PlotSpec, columns: Iterable[ColumnSpec]) -> str:
    """What the vertical axis is of: a figure in its unit, or how many times one column's is another's."""
    pairs = {column.ratio for column in columns if column.ratio is not None}
    cell: Template = spec.cell
    figure = cell.fields[0].figure
    if figure is None:
        raise TypeError("a plot's figure is resolved")
    if not pairs:
        return f"{figure.title} ({figure.unit})"
    return f"{figure.title}, " + ", ".join(f"{upper} / {lower}" for upper, lower in sorted(pairs))


def _place(row: Row, index: int) -> float:
    """Where a row lies along a line: its setting's value, or its number from 1 where that is no number."""
    (value,) = next(iter(row.where.values()))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float(index + 1)
