"""Parts of a report as Markdown and reStructuredText: what is read back is what was written."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from inferometer.report.markup.parts import Bullets, Code, Grid, Heading, Image, Paragraph, bold, joined, written
from inferometer.report.markup.rst import grid_table


def test_markdown() -> None:
    parts = [
        Heading(2, "A_b"),
        Paragraph("one\ntwo"),
        Bullets(("a", "b")),
        Code("run it"),
        Image("a.svg", "A"),
        Grid(("x", "y"), (("1", "2"),)),
    ]
    assert written(parts, "md") == (
        "## A_b\n\none two\n\n- a\n- b\n\n```bash\nrun it\n```\n\n![A](a.svg)\n\n| x | y |\n|---|---|\n| 1 | 2 |\n"
    )


def test_restructured_text() -> None:
    parts = [
        Heading(1, "A_b"),
        Paragraph("one\ntwo"),
        Bullets(("a", "b")),
        Code("run it"),
        Image("a.svg", "A"),
        Grid(("x", "y"), (("1", "-"),)),
    ]
    assert written(parts, "rst") == (
        "A_b\n===\n\none two\n\n- a\n- b\n\n.. code-block:: bash\n\n   run it\n\n.. image:: a.svg\n   :alt: A\n\n"
        "+---+----+\n| x | y  |\n+===+====+\n| 1 | \\- |\n+---+----+\n"
    )


@given(st.text(alphabet="lt_*`[](){}<>|\\#!&;-. ", max_size=30))
def test_words_of_others_are_shown_as_they_are(words: str) -> None:
    """A Markdown reader gives the words back: nothing in them became emphasis, a link, code or HTML."""
    text = written([Paragraph(f"x {words} x")], "md")
    (_, inline, _) = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    assert inline.children is not None
    assert {child.type for child in inline.children} <= {"text", "text_special"}
    assert "".join(child.content for child in inline.children) == " ".join(f"x {words} x".split())


CELLS = st.text(alphabet="abc 1.", max_size=9)


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.tuples(st.lists(CELLS, min_size=n, max_size=n), st.lists(st.lists(CELLS, min_size=n, max_size=n)))
    )
)
def test_a_grid_s_cells_stand_under_their_headings(drawn: tuple[list[str], list[list[str]]]) -> None:
    head, rows = drawn
    grid = Grid(tuple(head), tuple(tuple(row) for row in rows))
    lines = grid_table(grid.spans, grid.rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2] == "+" + "+".join("=" * len(part) for part in lines[2].strip("+").split("+")) + "+"
    places = [0, *(place for place, mark in enumerate(lines[2]) if mark == "+" and place)]
    for row, line in zip(rows, lines[3::2], strict=True):
        assert [line[a + 1 : b].strip() for a, b in pairwise(places)] == [" ".join(cell.split()) for cell in row]
    # A heading begins where its first column does, and ends with a bar.
    start = 0
    for text, span in grid.spans:
        assert lines[1][places[start] + 1 : places[start + span]].strip() == " ".join(text.split())
        assert lines[1][places[start + span]] == "|"
        start += span


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="every row of the table needs 2 cells"):
        Grid(("a", "b"), (("1",),))
    with pytest.raises(ValueError, match="every row of the table needs 3 cells"):
        grid_table((("a", 2), ("b", 1)), (("1", "2"),))


def test_bold_stays_bold_and_lists_read_well() -> None:
    assert "| **1.5** |" in written([Grid(("x",), ((bold("1.5"),),))], "rst")
    assert [joined(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
