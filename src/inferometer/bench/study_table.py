"""Reads the tables and plots of a study's file, each from the mapping that TOML gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from inferometer.bench.case import Case
from inferometer.bench.study_cell import BESIDE, Template, template_of
from inferometer.bench.study_figure import find_figure
from inferometer.bench.study_layout import (
    TOTAL_LENGTH,
    WORDS,
    Best,
    BlockSpec,
    ColumnSpec,
    Fact,
    Kind,
    PlotKind,
    PlotSpec,
    PublishedSpec,
    RowSpec,
    TableSpec,
    Where,
)
from inferometer.errors import UserError
from inferometer.estimate.measured import load_regimes
from inferometer.estimate.stack import STACKS
from inferometer.hardware.table import Table

__all__ = ["PlotSpec", "TableSpec", "plot_of", "settings", "table_of"]

# The phases that each of the tables by phase has, and what it says of each.
_PHASES = {
    "percentiles": (("prefill_ms", "Prefill"), ("decode_ms", "Decode (token)"), ("decode_total_ms", "Decode (total)")),
    "rates": (("prefill_throughput", "Prefill"), ("decode_throughput", "Decode")),
}
_STATISTICS = {"mean": "Average", "min": "Lowest", "max": "Highest", "p50": "p50", "p90": "p90", "p99": "p99"}
_SHOWN = {"percentiles": tuple(_STATISTICS), "rates": ("mean", "min", "max")}
_UNITS = {"percentiles": "ms", "rates": "tokens/secs"}

_NAMES = re.compile(r"\{(\w+)\}")

_Made = TypeVar("_Made")
_Word = TypeVar("_Word", bound=str)


def table_of(values: Mapping[str, Any]) -> TableSpec:
    """The table that a `[[table]]` describes. Raises ValueError whose message begins with the key that is wrong."""
    return _read(values, "table", _table)


def plot_of(values: Mapping[str, Any]) -> PlotSpec:
    """The plot that a `[[plot]]` describes. Raises ValueError whose message begins with the key that is wrong."""
    return _read(values, "plot", _plot)


def settings() -> tuple[str, ...]:
    """Names that tell cases apart: those of a case, the column that it belongs to, and its total length."""
    return (*(each.name for each in fields(Case)), "column", TOTAL_LENGTH)


def _read(values: Mapping[str, Any], name: str, make: Callable[[Table], _Made]) -> _Made:
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be a table, not {values!r}")
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
    kind = _one_of(table, "kind", get_args(Kind)) if table.has("kind") else "grid"
    shared: dict[str, Any] = {
        "part": table.text("part"),
        "title": table.text("title"),
        "kind": kind,
        "section": _optional(table, "section"),
        "where": _where(table),
        "each": _each(table),
        "notes": table.texts("notes"),
    }
    if kind in ("parameters", "launcher"):
        return TableSpec(**shared)
    shared |= {"rows": _rows(table), "words": _words(table), "published": _published(table), "beside": _beside(table)}
    if kind in _PHASES:
        return _phases(kind, shared)
    blocks = tuple(_block(each) for each in table.tables("blocks"))
    made = TableSpec(
        **shared,
        **_columns(table, tuple(block.label for block in blocks)),
        cell=_template(table),
        blocks=blocks,
        block_headings=_flag(table, "block_headings"),
        best=_one_of(table, "best", get_args(Best)) if table.has("best") else None,
    )
    for column in made.columns or (ColumnSpec(heading=made.across or ""),):
        cell = column.cell or made.cell
        if cell is None and not blocks:
            raise table.error(f"cell is missing, for {column.heading!r} and in the table")
        if cell is not None and not blocks and any(each.figure is None for each in cell.fields):
            raise table.error("cell: {figure} stands for the figure of a block, and the table has no blocks")
    return made


def _each(table: Table) -> tuple[str, ...]:
    """Settings that split a table."""
    each = tuple(_setting(table, "each", name) for name in table.texts("each"))
    for key in ("section", "title"):
        if table.has(key):
            _check_names(table, key, table.text(key), each)
    return each


def _check_names(table: Table, key: str, text: str, each: tuple[str, ...]) -> None:
    """Words above a table may name in braces only what it has one value of."""
    if any(name not in each for name in _NAMES.findall(text)) or set("{}") & set(_NAMES.sub("", text)):
        raise table.error(f"{key}: only settings of each, which are {list(each)}, stand in braces in {text!r}")


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
    cell = _template(table)
    if cell is None:
        raise table.error("cell is missing: the figure to draw, such as throughput")
    made = PlotSpec(
        part=table.text("part"),
        title=table.text("title"),
        kind=_one_of(table, "kind", get_args(PlotKind)),
        rows=_rows(table),
        **_columns(table, ()),
        cell=cell,
        where=_where(table),
        each=_each(table),
        log=_flag(table, "log"),
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
    headings = _by_name(table, "headings")
    ratio = _pair(table) if table.has("ratio") else None
    if isinstance(table.value("columns"), str):
        return {"across": _setting(table, "columns", table.text("columns")), "headings": headings, "ratio": ratio}
    made = tuple(_column(each) for each in table.tables("columns"))
    if not made:
        raise table.error("columns must name a setting or hold a table for each column")
    if headings or ratio:
        raise table.error(f"{'headings' if headings else 'ratio'} goes with columns along a setting")
    for column in made:
        _check_names(table, "columns", column.heading, table.texts("each"))
        stray = [label for label in column.blocks if label not in blocks]
        if stray:
            raise table.error(f"columns: {column.heading!r}: blocks: {stray[0]!r} is no block's label")
    return {"columns": made}


def _column(table: Table) -> ColumnSpec:
    where = dict(_where(table))
    name = _optional(table, "column")
    if name is not None:
        where["column"] = (name,)
    made = ColumnSpec(
        heading=_heading(table, name or ""),
        group=_optional(table, "group"),
        where=MappingProxyType(where),
        cell=_template(table),
        ratio=_pair(table) if table.has("ratio") else None,
        stack=_stack(table),
        published=_published(table),
        published_only=_flag(table, "published_only"),
        given=_given(table),
        source=_optional(table, "source"),
        blocks=table.texts("blocks"),
    )
    if bool(made.given) != (made.source is not None):
        raise table.error("given and source go together: figures, and where they are from")
    if made.published_only and made.published is None:
        raise table.error("published_only needs published, which says where the figures are")
    if made.ratio is not None and (made.stack is not None or name is not None):
        raise table.error("ratio names both its columns: leave out column and stack")
    table.finish()
    return made


def _rows(table: Table) -> tuple[RowSpec, ...]:
    """`rows`: a setting, or a list of settings and of tables with `axis`, `heading`, `words` and `fact`."""
    if not table.has("rows"):
        raise table.error("rows is missing: a setting, or a list of them")
    value = table.value("rows")
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(each, str | dict) for each in listed):
        raise table.error(f"rows must be a setting or a list of settings, not {value!r}")
    return tuple(_row(table.inner("rows", index, {"axis": each} if isinstance(each, str) else each)) for index, each in enumerate(listed))


def _row(table: Table) -> RowSpec:
    axis = _setting(table, "axis", table.text("axis"))
    fact = _one_of(table, "fact", get_args(Fact)) if table.has("fact") else None
    if fact is not None and axis != "model":
        raise table.error(f"fact: {fact} is of a model, so axis must be model, not {axis}")
    made = RowSpec(axis=axis, heading=_heading(table, axis), words=_by_name(table, "words"), fact=fact)
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


def _published(table: Table) -> PublishedSpec | None:
    if not table.has("published"):
        return None
    inner = table.table("published")
    regimes = inner.texts("regimes")
    known = load_regimes()
    stray = [name for name in regimes if name not in known]
    if stray or not regimes:
        raise inner.error(f"regimes must name some of {', '.join(known)}, not {stray or list(regimes)}")
    narrowed = {"stack": _stack(inner), **{key: _optional(inner, key) for key in ("admission", "dtype", "mode")}}
    prompt_tokens = inner.count("prompt_tokens") if inner.has("prompt_tokens") else None
    made = PublishedSpec(regimes=regimes, places=inner.texts("places"), **narrowed, prompt_tokens=prompt_tokens)
    inner.finish()
    return made


def _beside(table: Table) -> tuple[str, ...]:
    given = table.texts("beside") if table.has("beside") else tuple(BESIDE)
    stray = [name for name in given if name not in BESIDE]
    if stray:
        raise table.error(f"beside holds some of {', '.join(BESIDE)}, not {stray[0]!r}")
    return given


def _where(table: Table) -> Where:
    inner = table.table("where")
    found = {}
    for name in inner.names():
        _setting(table, "where", name)
        value = inner.value(name)
        values = tuple(value) if isinstance(value, list) else (value,)
        if not values or not all(isinstance(each, str | int | float) for each in values):
            raise inner.error(f"{name} must be a value or a list of values, not {value!r}")
        found[name] = values
    return MappingProxyType(found)


def _words(table: Table) -> Mapping[str, str]:
    given = _by_name(table, "words")
    stray = [name for name in given if name not in WORDS]
    if stray:
        raise table.error(f"words: {stray[0]!r} is no status; they are {', '.join(WORDS)}")
    return MappingProxyType({**WORDS, **given})


def _template(table: Table) -> Template | None:
    if not table.has("cell"):
        return None
    try:
        return template_of(table.text("cell"))
    except ValueError as error:
        raise table.error(f"cell: {error}") from None


def _pair(table: Table) -> tuple[str, str]:
    names = table.texts("ratio")
    if len(names) != 2:
        raise table.error(f"ratio must name two columns, the first over the second, not {list(names)}")
    return (names[0], names[1])


def _by_name(table: Table, key: str) -> Mapping[str, str]:
    """A table of strings; one that is empty is a string too."""
    inner = table.table(key)
    for name in inner.names():
        if not isinstance(inner.value(name), str):
            raise inner.error(f"{name} must be a string, not {inner.value(name)!r}")
    return MappingProxyType({name: inner.value(name) for name in inner.names()})


def _stack(table: Table) -> str | None:
    """The estimator's name of a stack; what find_stack says of an unknown one begins with a flag, which a file has not got."""
    name = _optional(table, "stack")
    if name is not None and name not in STACKS:
        raise table.error(f"stack: {name!r} is unknown; the stacks are {', '.join(STACKS)}")
    return name


def _given(table: Table) -> Mapping[str, float]:
    inner = table.table("given")
    return MappingProxyType({name: inner.number(name) for name in inner.names()})


def _heading(table: Table, default: str) -> str:
    """Words above a column, which may be none."""
    if not table.has("heading"):
        return default
    value = table.value("heading")
    if not isinstance(value, str):
        raise table.error(f"heading must be a string, not {value!r}")
    return value


def _setting(table: Table, key: str, name: str) -> str:
    if name not in settings():
        raise table.error(f"{key}: {name!r} is no setting of a case; the settings are {', '.join(settings())}")
    return name


def _one_of(table: Table, key: str, words: tuple[_Word, ...]) -> _Word:
    value = table.text(key)
    for word in words:
        if word == value:
            return word
    raise table.error(f"{key} must be one of {', '.join(words)}, not {value!r}")


def _optional(table: Table, key: str) -> str | None:
    return table.text(key) if table.has(key) else None


def _flag(table: Table, key: str) -> bool:
    return table.flag(key) if table.has(key) else False
