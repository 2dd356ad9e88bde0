"""A table or a plot that a study asks for: which records are its rows and columns, and what stands in its cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from inferometer.bench.study.cell import BESIDE, Template
from inferometer.bench.study.figure import Figure

Kind = Literal["grid", "percentiles", "rates", "parameters", "launcher"]
PlotKind = Literal["bars", "lines"]
Best = Literal["high", "low"]
Fact = Literal["parameters", "layers", "hidden_size"]
# What a cell says of a case that has no figure, by the case's status; "missing" where there is no such case, "unknown" where the
# case ran and has no such figure.
WORDS: Mapping[str, str] = MappingProxyType(
    {"oom": "oom", "error": "error", "timeout": "timeout", "skipped": "skipped", "missing": "", "unknown": "-"}
)

# What follows from two settings of a case, and may stand where a setting does: prompt and new tokens of a sequence.
TOTAL_LENGTH = "total_length"

Where = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSpec:
    """Where published figures are: the measured rows of these regimes that match a cell's case.

    stack: the publication's; None for rows of the case's own stack and, unless dtype names another, its own type. places: words of
    which one is in a row's source. admission, dtype and mode narrow the rows. Model, batch, lengths, groups, devices and the format of
    weights must be the case's. prompt_tokens: the length of the publication's prompts, where the study's own are of another.
    """

    regimes: tuple[str, ...]
    places: tuple[str, ...] = ()
    stack: str | None = None
    admission: str | None = None
    dtype: str | None = None
    mode: str | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpec:
    """A column of row labels: the setting `axis`, its values written as `words` says, or a fact of the model that it names."""

    axis: str
    heading: str
    words: Mapping[str, str] = field(default_factory=dict)
    fact: Fact | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """A column of figures: those of the cases with `where` in their row, or with `ratio` one column's figure over another's.

    group: a heading over several columns. cell: None for the table's. stack: nothing is measured; the estimator's figures for that stack,
    on the records' device. published_only: nothing is measured; the published figures. given: figures from `source`, by the value or the
    label of the last row setting. blocks: the labels of the blocks that have it, none for all.
    """

    heading: str
    group: str | None = None
    where: Where = field(default_factory=dict)
    cell: Template | None = None
    ratio: tuple[str, str] | None = None
    stack: str | None = None
    published: PublishedSpec | None = None
    published_only: bool = False
    given: Mapping[str, float] = field(default_factory=dict)
    source: str | None = None
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """A group of rows that shows one figure."""

    label: str
    figure: Figure


def _named_columns(where: Where, ratio: tuple[str, str] | None, columns: tuple[ColumnSpec, ...]) -> tuple[str, ...]:
    """The study's columns that a table or a plot names, wherever it does."""
    found = [*where.get("column", ()), *(ratio or ())]
    for each in columns:
        found += [*each.where.get("column", ()), *(each.ratio or ())]
    return tuple(dict.fromkeys(str(name) for name in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table of one part's records.

    section: a heading before the title. where: the only records that count. each: settings of which every combination of values has a
    table of its own; section, title and headings name them in braces. rows: the settings that tell rows apart. across: the setting
    whose every value is a column, named as `headings` says and with `ratio` one column's figure over another's; None where `columns`
    spells them out. cell: what stands in cells. blocks: the rows are repeated for each, under `label` or, with block_headings, each under
    headings of its own. words: what a cell says of a case without a figure. beside: the sources from which the table is repeated.
    best: what is marked in bold. A kind other than grid, percentiles and rates has a layout of its own, and no rows and columns.
    """

    part: str
    title: str
    kind: Kind = "grid"
    section: str | None = None
    where: Where = field(default_factory=dict)
    each: tuple[str, ...] = ()
    rows: tuple[RowSpec, ...] = ()
    across: str | None = None
    headings: Mapping[str, str] = field(default_factory=dict)
    ratio: tuple[str, str] | None = None
    columns: tuple[ColumnSpec, ...] = ()
    cell: Template | None = None
    blocks: tuple[BlockSpec, ...] = ()
    label: str | None = None
    block_headings: bool = False
    words: Mapping[str, str] = field(default_factory=lambda: WORDS)
    published: PublishedSpec | None = None
    beside: tuple[str, ...] = tuple(BESIDE)
    best: Best | None = None
    notes: tuple[str, ...] = ()

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The study's columns that the table names."""
        return _named_columns(self.where, self.ratio, self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSpec:
    """A plot of one part's records: one figure over `rows`, a colour a column; `each` as of a table.

    log: both axes of lines, the height of bars.
    """

    part: str
    title: str
    kind: PlotKind
    where: Where = field(default_factory=dict)
    each: tuple[str, ...] = ()
    rows: tuple[RowSpec, ...]
    across: str | None = None
    headings: Mapping[str, str] = field(default_factory=dict)
    ratio: tuple[str, str] | None = None
    columns: tuple[ColumnSpec, ...] = ()
    cell: Template
    log: bool = False

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The study's columns that the plot names."""
        return _named_columns(self.where, self.ratio, self.columns)
