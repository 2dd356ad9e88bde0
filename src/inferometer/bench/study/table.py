"""Reads the tables and plots of a study's file, each from the mapping that TOML gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from inferometer.bench.study.cell import template_of
from inferometer.bench.study.figure import find_figure
from inferometer.bench.study.keys import (
    beside_key,
    cell_key,
    check_names,
    each_key,
    given_key,
    heading_key,
    published_key,
    ratio_key,
    rows_key,
    setting_of,
    stack_key,
    texts_key,
    where_key,
    words_key,
)
from inferometer.bench.study.layout import (
    Best,
    BlockSpec,
    ColumnSpec,
    Kind,
    PlotKind,
    PlotSpec,
    TableSpec,
)
from inferometer.errors import UserError, shown
from inferometer.hardware.table import Table

__all__ = ["PlotSpec", "TableSpec", "plot_of", "table_of"]

# The phases that each of the tables by phase has, and what it says of each.
_PHASES = {
    "percentiles": (("prefill_ms", "Prefill"), ("decode_ms", "Decode (token)"), ("decode_total_ms", "Decode (total)")),
    "rates": (("prefill_throughput", "Prefill"), ("decode_throughput", "Decode")),
}
_STATISTICS = {"mean": "Average", "min": "Lowest", "max": "Highest", "p50": "p50", "p90": "p90", "p99": "p99"}
_SHOWN = {"percentiles": tuple(_STATISTICS), "rates": ("mean", "min", "max")}
_UNITS = {"percentiles": "ms", "rates": "tokens/secs"}

_Made = TypeVar("_Made")


def table_of(values: Mapping[str, Any]) -> TableSpec:
    """The table that a `[[table]]` describes. Raises ValueError whose message begins with the key that is wrong."""
    return _read(values, "table", _table)


def plot_of(values: Mapping[str, Any]) -> PlotSpec:
    """The plot that a `[[plot]]` describes. Raises ValueError whose message begins with the key that is wrong."""
    return _read(values, "plot", _plot)


def _read(values: Mapping[str, Any], name: str, make: Callable[[Table], _Made]) -> _Made:
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be a table, not {shown(values)}")
    table = Table(values, name)
    try:
        made = make(table)
        table.finish()
    except UserError as error:
        raise ValueError(_from_its_key(str(error).removeprefix(f"{name}: "))) from None
    return made


def _from_its_key(message: str) -> str:
    """A message that begins with the key which is wrong, by which its line is found."""
    unknown = re.fullmatch(r"unknown key '([^']*)'; (.*)", message)
    return message if unknown is None else f"{unknown[1]} is unknown; {unknown[2]}"


def _table(table: Table) -> TableSpec:
    kind = table.one_of("kind", get_args(Kind)) if table.has("kind") else "grid"
    shared: dict[str, Any] = {
        "part": table.text("part"),
        "title": table.text("title"),
        "kind": kind,
        "section": table.optional_text("section"),
        "where": where_key(table),
        "each": each_key(table),
        "notes": table.texts("notes"),
    }
    if kind in ("parameters", "launcher"):
        return TableSpec(**shared)
    shared |= {"rows": rows_key(table), "words": words_key(table), "published": published_key(table), "beside": beside_key(table)}
    if kind in _PHASES:
        return _phases(kind, shared)
    blocks = tuple(_block(each) for each in table.tables("blocks"))
    made = TableSpec(
        **shared,
        **_columns(table, tuple(block.label for block in blocks)),
        cell=cell_key(table),
        blocks=blocks,
        block_headings=table.optional_flag("block_headings"),
        best=table.one_of("best", get_args(Best)) if table.has("best") else None,
    )
    for column in made.columns or (ColumnSpec(heading=made.across or ""),):
        cell = column.cell or made.cell
        if cell is None and not blocks:
            raise table.error(f"cell is missing, for {column.heading!r} and in the table")
        if cell is not None and not blocks and any(each.figure is None for each in cell.fields):
            raise table.error("cell: {figure} stands for the figure of a block, and the table has no blocks")
    return made


def _phases(kind: str, shared: dict[str, Any]) -> TableSpec:
    """Phases by rows: the percentiles of each time, or its rates with their lowest and highest."""
    cells = {name: template_of(f"{{figure.{name}:.2f}} {_UNITS[kind]}") for name in _SHOWN[kind]}
    return TableSpec(
        **shared,
        columns=tuple(ColumnSpec(heading=_STATISTICS[name], cell=cell) for name, cell in cells.items()),
        blocks=tuple(BlockSpec(label=label, figure=find_figure(name)) for name, label in _PHASES[kind]),
        label="Step",
    )


def _plot(table: Table) -> PlotSpec:
    cell = cell_key(table)
    if cell is None:
        raise table.error("cell is missing: the figure to draw, such as throughput")
    made = PlotSpec(
        part=table.text("part"),
        title=table.text("title"),
        kind=table.one_of("kind", get_args(PlotKind)),
        rows=rows_key(table),
        **_columns(table, ()),
        cell=cell,
        where=where_key(table),
        each=each_key(table),
        log=table.optional_flag("log"),
    )
    if made.kind == "lines" and len(made.rows) > 1:
        raise table.error("rows: lines run along one setting")
    for drawn in (made.cell, *(column.cell for column in made.columns)):
        if drawn is not None and (len(drawn.fields) != 1 or drawn.fields[0].figure is None):
            raise table.error("cell: a plot shows one figure, such as throughput or {predicted.latency}")
    return made


def _columns(table: Table, blocks: tuple[str, ...]) -> dict[str, Any]:
    """`across` with `headings` and `ratio`, or `columns`."""
    if not table.has("columns"):
        raise table.error("columns is missing: a setting, or a table for each column")
    headings = texts_key(table, "headings")
    ratio = ratio_key(table) if table.has("ratio") else None
    if isinstance(table.value("columns"), str):
        return {"across": setting_of(table, "columns", table.text("columns")), "headings": headings, "ratio": ratio}
    made = tuple(_column(each) for each in table.tables("columns"))
    if not made:
        raise table.error("columns must name a setting or hold a table for each column")
    if headings or ratio:
        raise table.error(f"{'headings' if headings else 'ratio'} goes with columns along a setting")
    for column in made:
        check_names(table, "columns", column.heading, table.texts("each"))
        stray = [label for label in column.blocks if label not in blocks]
        if stray:
            raise table.error(f"columns: {column.heading!r}: blocks: {stray[0]!r} is no block's label")
    return {"columns": made}


def _column(table: Table) -> ColumnSpec:
    where = dict(where_key(table))
    name = table.optional_text("column")
    if name is not None:
        where["column"] = (name,)
    given, source = given_key(table)
    made = ColumnSpec(
        heading=heading_key(table, name or ""),
        group=table.optional_text("group"),
        where=MappingProxyType(where),
        cell=cell_key(table),
        ratio=ratio_key(table) if table.has("ratio") else None,
        stack=stack_key(table),
        published=published_key(table),
        published_only=table.optional_flag("published_only"),
        given=given,
        source=source,
        blocks=table.texts("blocks"),
    )
    if made.published_only and made.published is None:
        raise table.error("published_only needs published, which says where the figures are")
    if made.ratio is not None and (made.stack is not None or name is not None):
        raise table.error("ratio names both its columns: leave out column and stack")
    table.finish()
    return made


def _block(table: Table) -> BlockSpec:
    try:
        figure = find_figure(table.text("figure"))
    except ValueError as error:
        raise table.error(f"figure: {error}") from None
    made = BlockSpec(label=table.text("label"), figure=figure)
    table.finish()
    return made
