from __future__ import annotations

import pytest

from inferometer.report.markup.markdown import table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("A", "Long name"), [("wide cell", "x"), ("", "yy")]).splitlines() == [
        "| A         | Long name |",
        "|-----------|-----------|",
        "| wide cell | x         |",
        "|           | yy        |",
    ]


def test_a_cell_cannot_end_its_column_or_its_row() -> None:
    assert table(("A",), [("a|b\nc",)]).splitlines()[-1] == "| a\\|b c |"


def test_a_cell_is_no_element_of_html() -> None:
    assert table(("a", "b"), [("<img src=x>", "1 <= 2")]).splitlines()[-1] == "| \\<img src=x> | 1 <= 2 |"


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells"):
        table(("A", "B"), [("x",)])
