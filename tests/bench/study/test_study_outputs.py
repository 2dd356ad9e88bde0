"""Tables and plots in a study's file: what is wrong in them is told with the line."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from inferometer.bench.study.figure import FIGURES
from inferometer.bench.study.file import read_study
from inferometer.bench.study.layout import Kind
from inferometer.errors import UserError

STUDY = """title = "Mine"
[fixed]
model = "opt-125m"
[[part]]
name = "sweep"
axes = { batch_size = [1, 2] }
columns = [{ name = "old", backend = "hf" }, { name = "new", backend = "native" }]
[[table]]
part = "sweep"
title = "T"
rows = "batch_size"
cell = "latency"
columns = [
    { heading = "Old", column = "old" },
    { heading = "scale", ratio = ["new", "old"] },
]
[[plot]]
part = "sweep"
title = "P"
kind = "bars"
rows = "batch_size"
columns = "column"
ratio = ["new", "old"]
cell = "latency"
[scale.tiny.parts.sweep]
columns = [{ name = "small", backend = "native" }]
"""


def test_a_study_with_tables_and_plots_is_read() -> None:
    study = read_study(STUDY, "mine", "mine.toml").study()
    assert [values["title"] for values in (*study.tables, *study.plots)] == ["T", "P"]


def test_a_scale_s_own_column_may_be_named() -> None:
    read_study(STUDY.replace('column = "old" }', 'column = "small" }'), "mine", "mine.toml")


@pytest.mark.parametrize(
    ("was", "now", "line", "says"),
    [
        ('rows = "batch_size"\ncell', 'rows = "batch"\ncell', 11, "rows[0]: axis: 'batch' is no setting of a case"),
        ('title = "T"', 'titel = "T"', 8, "title is missing"),
        ('cell = "latency"\ncolumns', 'cell = "lateness"\ncolumns', 12, "cell: 'lateness' is no figure"),
        ('column = "old"', 'column = "odd"', 13, "columns: part sweep has no column 'odd'; did you mean old?"),
        (
            'columns = "column"\nratio = ["new", "old"]',
            'columns = "column"\nratio = ["now", "old"]',
            23,
            "ratio: part sweep has no column 'now'",
        ),
        ('part = "sweep"\ntitle = "P"', 'part = "swept"\ntitle = "P"', 18, "swept is no part of the study"),
        ('kind = "bars"', 'kind = "bars"\nsize = 3', 21, "size is unknown; known keys are"),
    ],
)
def test_a_mistake_is_told_with_its_line(was: str, now: str, line: int, says: str) -> None:
    assert STUDY.count(was) == 1
    with pytest.raises(UserError) as error:
        read_study(STUDY.replace(was, now), "mine", "mine.toml")
    assert says in str(error.value)
    assert f"line {line}" in str(error.value)


def test_the_example_of_the_documentation_is_a_study() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "study-tables.md").read_text(encoding="utf-8")
    study = read_study(page.split("```toml\n")[1].split("```")[0], "mine", "study-tables.md").study()
    assert [values["title"] for values in (*study.tables, *study.plots)] == [
        "Throughput (tokens/sec | msec/token)",
        "Beside each other",
        "Speed-up",
    ]


def test_the_documentation_names_every_figure_and_key() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "study-tables.md").read_text(encoding="utf-8")
    assert [name for name in FIGURES if f"`{name}`" not in page] == []
    assert [name for name in get_args(Kind) if name != "grid" and f'"{name}"' not in page] == []
