"""The rows and columns that a table of a study has, as measured and as repeated from another source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from inferometer.bench.study.cell import Source, Template, template_of
from inferometer.bench.study.layout import ColumnSpec, PlotSpec, TableSpec, Where
from inferometer.hardware.catalogue import find_device
from inferometer.report.study.part_records import PartRecords
from inferometer.report.study.published_figures import rows_of
from inferometer.report.tables.words import row_label, shown

# What a publication says in the place of each source: its measurement, its own estimate, and how far the two are apart.
PUBLISHED_SOURCES: Mapping[Source, Source] = MappingProxyType(
    {"measured": "published", "predicted": "published_estimate", "error": "published_error"}
)
# Settings that a publication has its own values of.
DEVICES = ("device", "device_name")


@dataclass(frozen=True, slots=True)
class Row:
    """A row: the settings that its cases have here, and its labels. device: of the publication whose row it is, None for our own."""

    where: Where
    labels: tuple[str, ...]
    device: str | None = None

    @property
    def name(self) -> str:
        """The row in a sentence."""
        return ", ".join(f"{axis} {values[0]}" for axis, values in self.where.items())


_Spec = TypeVar("_Spec", TableSpec, PlotSpec)


def apart(spec: _Spec, records: PartRecords) -> tuple[_Spec, ...]:
    """What a specification stands for: itself, or one for each combination of values that the records have in its `each`."""
    if not spec.each:
        return (spec,)
    return tuple(_one_of(spec, dict(zip(spec.each, values, strict=True))) for values in records.where(spec.where).values(spec.each))


def _one_of(spec: _Spec, values: Mapping[str, Any]) -> _Spec:
    names = {name: shown(value) for name, value in values.items()}
    where = {**spec.where, **{name: (value,) for name, value in values.items()}}
    columns = tuple(replace(column, heading=column.heading.format_map(names)) for column in spec.columns)
    made = replace(spec, each=(), where=where, title=spec.title.format_map(names), columns=columns)
    if isinstance(made, TableSpec) and made.section is not None:
        made = replace(made, section=made.section.format_map(names))
    return made


def columns_of(spec: TableSpec | PlotSpec, records: PartRecords, source: Source) -> tuple[ColumnSpec, ...]:
    """The columns in order, each with its cell, those along a setting spelled out; from another source only those that it can have."""
    found = spec.columns
    if spec.across is not None:
        names = [value for (value,) in records.values([spec.across])]
        found = tuple(
            ColumnSpec(heading=spec.headings.get(str(name), str(name)), where={spec.across: (name,)}, ratio=spec.ratio) for name in names
        )
    whole = [replace(column, cell=column.cell or spec.cell or template_of("{figure}")) for column in found]
    if source == "measured":
        return tuple(whole)
    publishes = isinstance(spec, TableSpec) and spec.published is not None
    sourced = (_published(column, publishes) if source == "published" else _from(column, source) for column in whole)
    return tuple(column for column in sourced if column is not None)


def _from(column: ColumnSpec, source: Source) -> ColumnSpec | None:
    """The column predicted or at its bound. A bound has no other stacks and no ratios: it is the hardware's."""
    if column.cell is None or not column.cell.plain or column.published_only or column.given:
        return None
    if source == "bound" and (column.stack is not None or column.ratio is not None):
        return None
    return replace(column, cell=column.cell.sourced(source))


def _published(column: ColumnSpec, publishes: bool) -> ColumnSpec | None:
    if (
        column.cell is None
        or column.given
        or any(each.statistic != "mean" or each.source not in PUBLISHED_SOURCES for each in column.cell.fields)
    ):
        return None
    if column.published is None and column.ratio is None and not publishes:
        return None
    fields = tuple(replace(each, source=PUBLISHED_SOURCES[each.source]) for each in column.cell.fields)
    return replace(column, cell=Template(column.cell.words, fields))


def heading_of(column: ColumnSpec) -> str:
    """What stands above the column: figures that were not measured here say so."""
    if column.stack is not None:
        return f"{column.heading} (predicted)"
    if column.given:
        return f"{column.heading} (published)"
    if column.published_only and column.published is not None:
        devices = dict.fromkeys(find_device(row.device).name for row in rows_of(column.published))
        return f"{column.heading} (published on {', '.join(devices)})"
    return column.heading


def rows_in(spec: TableSpec | PlotSpec, records: PartRecords, source: Source) -> tuple[Row, ...]:
    """The rows in order. Where a publication's figures are told apart by device, each of its devices has rows of its own."""
    axes = [row.axis for row in spec.rows]
    known = spec.published if isinstance(spec, TableSpec) else None
    if source != "published" or known is None or not set(axes) & set(DEVICES):
        return tuple(_row(spec, dict(zip(axes, values, strict=True))) for values in records.values(axes))
    devices = {row.device: row.gpus for row in rows_of(known)}
    others = [axis for axis in axes if axis not in DEVICES]
    found = [dict(zip(others, values, strict=True)) for values in records.values(others)]
    return tuple(_row(spec, values, slug, gpus) for slug, gpus in devices.items() for values in found)


def _row(spec: TableSpec | PlotSpec, values: Mapping[str, Any], device: str | None = None, gpus: int = 1) -> Row:
    """A row of our own, or of a publication's device, whose label is then that device's."""
    labels = []
    for each in spec.rows:
        if device is not None and each.axis in DEVICES:
            labels.append(find_device(device).name + ("" if gpus == 1 else f" x {gpus}"))
        else:
            labels.append(row_label(each, values[each.axis]))
    where = {axis: (value,) for axis, value in values.items() if device is None or axis not in DEVICES}
    return Row(where, tuple(labels), device)
