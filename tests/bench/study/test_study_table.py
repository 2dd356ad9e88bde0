"""Tables and plots as a study's file describes them: what is read, and which key a mistake is told with."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.bench.study.layout import ColumnSpec, PublishedSpec, RowSpec
from inferometer.bench.study.table import plot_of, table_of

LEAST = 'part = "sweep"\ntitle = "T"\nrows = "batch_size"\ncolumns = "column"\ncell = "throughput | ms_per_token"\n'
ONE = LEAST.replace(" | ms_per_token", "")


def read(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def test_the_least_that_makes_a_table() -> None:
    made = table_of(read(LEAST))
    assert (made.part, made.title, made.across) == ("sweep", "T", "column")
    assert made.rows == (RowSpec(axis="batch_size", heading="batch_size"),)
    assert made.cell is not None
    assert [each.figure.name for each in made.cell.fields if each.figure is not None] == ["throughput", "ms_per_token"]
    assert made.words["oom"] == "oom"
    assert made.beside == ("predicted", "bound", "published")


def test_rows_and_columns_spelled_out() -> None:
    made = table_of(
        read(
            """
part = "p"
title = "T"
rows = [{ axis = "num_groups", heading = "num batch", words = { 4 = "four" } }, "sequence_length"]
where = { dtype = "float16", batch_size = [1, 2] }
published = { regimes = ["004"], stack = "deepspeed", places = ["Latency"] }
columns = [
    { heading = "Origin", column = "old", cell = "{latency:.3f}" },
    { heading = "EET", stack = "eet", cell = "latency", where = { dtype = "float16" } },
    { heading = "scale", ratio = ["new", "old"], cell = "throughput" },
    { heading = "theirs", given = { 4 = 1.5 }, source = "a page", cell = "latency" },
]
"""
        )
    )
    assert made.rows == (
        RowSpec(axis="num_groups", heading="num batch", words={"4": "four"}),
        RowSpec(axis="sequence_length", heading="sequence_length"),
    )
    assert made.where == {"dtype": ("float16",), "batch_size": (1, 2)}
    assert made.published == PublishedSpec(regimes=("004",), stack="deepspeed", places=("Latency",))
    assert [column.heading for column in made.columns] == ["Origin", "EET", "scale", "theirs"]
    assert made.columns[0].where == {"column": ("old",)}
    assert made.columns[2].ratio == ("new", "old")
    assert made.columns[3].given == {"4": 1.5}


def test_tables_of_phases_come_with_their_columns() -> None:
    made = table_of(read('part = "p"\ntitle = "T"\nkind = "percentiles"\nrows = "batch_size"\n'))
    assert [column.heading for column in made.columns] == ["Average", "Lowest", "Highest", "p50", "p90", "p99"]
    assert [block.label for block in made.blocks] == ["Prefill", "Decode (token)", "Decode (total)"]
    assert made.label == "Step"
    rates = table_of(read('part = "p"\ntitle = "T"\nkind = "rates"\nrows = "batch_size"\n'))
    assert [column.heading for column in rates.columns] == ["Average", "Lowest", "Highest"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('title = "T"', "part is missing"),
        ('part = "p"\ntitle = ""', "title must be a string that is not empty, not ''"),
        ('part = "p"\ntitle = "T"', "rows is missing: a setting, or a list of them"),
        ('part = "p"\ntitle = "T"\nrows = []', "rows must be a setting or a list of settings, not []"),
        (
            'part = "p"\ntitle = "T"\nrows = "batch"',
            "rows[0]: axis: 'batch' is no setting of a case; did you mean batch_size?",
        ),
        ('part = "p"\ntitle = "T"\nrows = "batch_size"', "columns is missing: a setting, or a table for each column"),
        (LEAST.replace('"throughput | ms_per_token"', '"speed"'), "cell: 'speed' is no figure; known are latency, total_ms"),
        (LEAST.replace('cell = "throughput | ms_per_token"', ""), "cell is missing, for 'column' and in the table"),
        (LEAST + 'kind = "pie"', "kind must be one of grid, percentiles, rates, parameters, launcher, not 'pie'"),
        (LEAST + 'collumns = "x"', "collumns is unknown; known keys are"),
        (LEAST + 'beside = ["guessed"]', "beside holds some of predicted, bound, published, not 'guessed'"),
        (LEAST + 'words = { broken = "x" }', "words: 'broken' is no status; they are oom, error"),
        (LEAST + "where = { bath = 1 }", "where: 'bath' is no setting of a case"),
        (LEAST + "where = { batch_size = [] }", "where: batch_size must be a value or a list of values, not []"),
        (LEAST + 'ratio = ["one"]', "ratio must name two columns, the first over the second, not ['one']"),
        (LEAST + "published = {}", "published: regimes must name some of 001-runtime-1gpu"),
        (
            LEAST.replace('"T"', '"T {batch_size}"'),
            "title: only settings of each, which are [], stand in braces",
        ),
        (LEAST.replace('"throughput | ms_per_token"', '"{figure:.2f}"'), "cell: {figure} stands for the figure of a block"),
        (
            LEAST.replace('"column"', '[{ column = "a", stack = "eet", ratio = ["a", "b"] }]'),
            "columns[0]: ratio names both",
        ),
        (LEAST.replace('"column"', '[{ heading = "a", given = { 1 = 2.0 } }]'), "columns[0]: given and source go together"),
        (LEAST.replace('"column"', '[{ heading = "a", given = "b" }]'), "columns[0]: given: 'b' is no chart; the charts are 003-"),
        (LEAST.replace('"column"', '[{ heading = "a", published_only = true }]'), "columns[0]: published_only needs published"),
        (LEAST.replace('"column"', '[{ column = "a", blocks = ["b"] }]'), "columns: 'a': blocks: 'b' is no block's label"),
        (
            LEAST.replace('rows = "batch_size"', 'rows = [{ axis = "dtype", fact = "layers" }]'),
            "rows[0]: fact: layers is",
        ),
        (LEAST + 'published = { regimes = ["005"] }', "published: regimes must name some of 001-runtime-1gpu"),
        (LEAST.replace('"column"', '[{ heading = "a", stack = "eat" }]'), "columns[0]: stack: 'eat' is unknown; the stacks are hf-eager"),
        (LEAST + 'blocks = [{ label = "x", figure = "y" }]', "blocks[0]: figure: 'y' is no figure"),
    ],
)
def test_a_mistake_is_told_with_its_key(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(says)) as error:
        table_of(read(text))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LEAST + 'kind = "bars"', "cell: a plot shows one figure, such as throughput or {predicted.latency}"),
        (ONE, "kind is missing"),
        (
            LEAST.replace(" | ms_per_token", "").replace('"batch_size"', '["batch_size", "dtype"]') + 'kind = "lines"',
            "rows: lines run along",
        ),
    ],
)
def test_a_plot_s_mistake_is_told_with_its_key(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(says)):
        plot_of(read(text))


def test_a_plot() -> None:
    made = plot_of(read(LEAST.replace("throughput | ms_per_token", "latency") + 'kind = "lines"\nlog = true\nwhere = { column = "a" }'))
    assert (made.kind, made.log, made.where) == ("lines", True, {"column": ("a",)})
    assert made.columns == ()
    assert made.across == "column"


def test_a_column_s_heading_may_be_empty() -> None:
    made = table_of(read(LEAST.replace('"column"', '[{ heading = "", column = "a" }]')))
    assert made.columns == (ColumnSpec(heading="", where={"column": ("a",)}),)


ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    float("inf"),
    "",
    "x",
    "{",
    "{a}",
    [],
    [1],
    ["x"],
    [[]],
    [{}],
    [None],
    {},
    {"a": 1},
    {"a": {}},
    [{"a": "b"}],
)
KEYS = (
    *("part", "title", "kind", "section", "where", "each", "rows", "columns", "headings", "ratio", "cell", "blocks", "block_headings"),
    *("words", "published", "beside", "best", "notes", "log", "other"),
)
INNER = ("axis", "heading", "fact", "column", "stack", "given", "source", "regimes", "figure", "label")


@given(
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(ODD) | st.dictionaries(st.sampled_from(INNER), st.sampled_from(ODD)), max_size=4)
)
def test_whatever_stands_there_is_read_or_refused_by_key(values: dict[str, Any]) -> None:
    whole = {**read(LEAST), **values}
    for read_one in (table_of, plot_of):
        try:
            read_one(whole)
        except ValueError as error:
            told = str(error)
        else:
            continue
        assert re.match(r"[a-z_]+\b", told)
        assert "\n" not in told
