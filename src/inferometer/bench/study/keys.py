"""The keys that tables and plots of a study's file have in common, each read with the check that belongs to it.

What is wrong raises the table's own error, a UserError that says where.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import get_args

from inferometer.bench.records.case import Case
from inferometer.bench.study.cell import BESIDE, Template, template_of
from inferometer.bench.study.layout import TOTAL_LENGTH, WORDS, Fact, PublishedSpec, RowSpec, Where
from inferometer.bench.study.settings import did_you_mean
from inferometer.estimate.measured import load_charts, load_regimes
from inferometer.estimate.stack import STACKS
from inferometer.hardware.table import Table

_NAMES = re.compile(r"\{(\w+)\}")


def settings() -> tuple[str, ...]:
    """Names that tell cases apart: those of a case, the column that it belongs to, and its total length."""
    return (*(each.name for each in fields(Case)), "column", TOTAL_LENGTH)


def each_key(table: Table) -> tuple[str, ...]:
    """Settings that split a table."""
    each = tuple(setting_of(table, "each", name) for name in table.texts("each"))
    for key in ("section", "title"):
        if table.has(key):
            check_names(table, key, table.text(key), each)
    return each


def check_names(table: Table, key: str, text: str, each: tuple[str, ...]) -> None:
    """Words above a table may name in braces only what it has one value of."""
    if any(name not in each for name in _NAMES.findall(text)) or set("{}") & set(_NAMES.sub("", text)):
        raise table.error(f"{key}: only settings of each, which are {list(each)}, stand in braces in {text!r}")


def rows_key(table: Table) -> tuple[RowSpec, ...]:
    """`rows`: a setting, or a list of settings and of tables with `axis`, `heading`, `words` and `fact`."""
    if not table.has("rows"):
        raise table.error("rows is missing: a setting, or a list of them")
    value = table.value("rows")
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(each, str | dict) for each in listed):
        raise table.error(f"rows must be a setting or a list of settings, not {value!r}")
    return tuple(_row(table.inner("rows", index, {"axis": each} if isinstance(each, str) else each)) for index, each in enumerate(listed))


def _row(table: Table) -> RowSpec:
    axis = setting_of(table, "axis", table.text("axis"))
    fact = table.one_of("fact", get_args(Fact)) if table.has("fact") else None
    if fact is not None and axis != "model":
        raise table.error(f"fact: {fact} is of a model, so axis must be model, not {axis}")
    made = RowSpec(axis=axis, heading=heading_key(table, axis), words=texts_key(table, "words"), fact=fact)
    table.finish()
    return made


def where_key(table: Table) -> Where:
    """`where`: settings, each with a value or several."""
    inner = table.table("where")
    found = {}
    for name in inner.names():
        setting_of(table, "where", name)
        value = inner.value(name)
        values = tuple(value) if isinstance(value, list) else (value,)
        if not values or not all(isinstance(each, str | int | float) for each in values):
            raise inner.error(f"{name} must be a value or a list of values, not {value!r}")
        found[name] = values
    return MappingProxyType(found)


def beside_key(table: Table) -> tuple[str, ...]:
    """`beside`: the sources that a table is repeated from; all where it is left out."""
    given = table.texts("beside") if table.has("beside") else tuple(BESIDE)
    stray = [name for name in given if name not in BESIDE]
    if stray:
        raise table.error(f"beside holds some of {', '.join(BESIDE)}, not {stray[0]!r}")
    return given


def words_key(table: Table) -> Mapping[str, str]:
    """`words`: what a cell says of each status, over the usual words."""
    given = texts_key(table, "words")
    stray = [name for name in given if name not in WORDS]
    if stray:
        raise table.error(f"words: {stray[0]!r} is no status; they are {', '.join(WORDS)}")
    return MappingProxyType({**WORDS, **given})


def published_key(table: Table) -> PublishedSpec | None:
    """`published`, None where it is left out."""
    if not table.has("published"):
        return None
    inner = table.table("published")
    regimes = inner.texts("regimes")
    known = load_regimes()
    stray = [name for name in regimes if name not in known]
    if stray or not regimes:
        raise inner.error(f"regimes must name some of {', '.join(known)}, not {stray or list(regimes)}")
    narrowed = {"stack": stack_key(inner), **{key: inner.optional_text(key) for key in ("admission", "dtype", "mode")}}
    prompt_tokens = inner.count("prompt_tokens") if inner.has("prompt_tokens") else None
    made = PublishedSpec(regimes=regimes, places=inner.texts("places"), **narrowed, prompt_tokens=prompt_tokens)
    inner.finish()
    return made


def stack_key(table: Table) -> str | None:
    """The estimator's name of a stack; what find_stack says of an unknown one begins with a flag, which a file has not got."""
    name = table.optional_text("stack")
    if name is not None and name not in STACKS:
        raise table.error(f"stack: {name!r} is unknown; the stacks are {', '.join(STACKS)}")
    return name


def given_key(table: Table) -> tuple[Mapping[str, float], str | None]:
    """`given`, figures by the value of a row, with the `source` that they need; or the name of a published chart, which has its own."""
    if table.has("given") and isinstance(table.value("given"), str):
        chart = load_charts().get(table.text("given"))
        if chart is None:
            raise table.error(f"given: {table.text('given')!r} is no chart; the charts are {', '.join(load_charts())}")
        return chart.values, chart.source
    inner, source = table.table("given"), table.optional_text("source")
    if bool(inner.names()) != (source is not None):
        raise table.error("given and source go together: figures, and where they are from")
    return MappingProxyType({name: float(inner.number(name)) for name in inner.names()}), source


def cell_key(table: Table) -> Template | None:
    """`cell`, None where it is left out."""
    if not table.has("cell"):
        return None
    try:
        return template_of(table.text("cell"))
    except ValueError as error:
        raise table.error(f"cell: {error}") from None


def ratio_key(table: Table) -> tuple[str, str]:
    """`ratio`: two columns."""
    names = table.texts("ratio")
    if len(names) != 2:
        raise table.error(f"ratio must name two columns, the first over the second, not {list(names)}")
    return (names[0], names[1])


def texts_key(table: Table, key: str) -> Mapping[str, str]:
    """A table of strings; one that is empty is a string too."""
    inner = table.table(key)
    for name in inner.names():
        if not isinstance(inner.value(name), str):
            raise inner.error(f"{name} must be a string, not {inner.value(name)!r}")
    return MappingProxyType({name: inner.value(name) for name in inner.names()})


def heading_key(table: Table, default: str) -> str:
    """Words above a column, which may be none."""
    if not table.has("heading"):
        return default
    value = table.value("heading")
    if not isinstance(value, str):
        raise table.error(f"heading must be a string, not {value!r}")
    return value


def setting_of(table: Table, key: str, name: str) -> str:
    """A name that must be a setting's."""
    if name not in settings():
        raise table.error(f"{key}: {name!r} is no setting of a case{did_you_mean(name, settings())}")
    return name
