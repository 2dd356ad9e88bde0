"""TOML written and read back, and the line on which a key stands."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.bench.study.toml_text import dumps, line_of

# What a table may be called: anything that prints.
KEYS = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=8)
PLAIN = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12),
)
VALUES: st.SearchStrategy[Any] = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=5)


@given(DOCUMENTS)
def test_what_is_written_is_read_back(document: dict[str, Any]) -> None:
    assert tomllib.loads(dumps(document)) == document


def test_what_toml_has_no_form_for() -> None:
    with pytest.raises(TypeError, match="None"):
        dumps({"a": None})


TEXT = """\
# a comment
title = "x" # more

[fixed]
runs = 3
more = [
    1,
    2,
]

[[part]]
name = "a"
axes.batch_size = [1]

[[part]]
name = "b"
[part.axes]
"odd name" = [
  # one
  1 ]
text = '''
runs = 9
'''
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("fixed",), 4),
        (("fixed", "runs"), 5),
        (("fixed", "more"), 6),
        (("fixed", "more", 1), 6),
        (("part", 0), 11),
        (("part", 0, "name"), 12),
        (("part", 0, "axes", "batch_size"), 13),
        (("part", 1, "name"), 16),
        (("part", 1, "axes"), 17),
        (("part", 1, "axes", "odd name"), 18),
        (("part", 1, "axes", "text"), 21),
        (("part", 2), None),
        (("runs",), None),
    ],
)
def test_the_line_of_a_key(path: tuple[str | int, ...], line: int | None) -> None:
    assert line_of(TEXT, path) == line


@given(st.lists(st.sampled_from(["", "# note", "x{n} = 1", "y{n} = [\n 1,\n 2]", "z{n} = '''\na = 1\n'''"]), max_size=12))
def test_every_key_is_found_where_it_stands(pieces: list[str]) -> None:
    lines: list[str] = []
    expected = {}
    for number, piece in enumerate(pieces):
        if "{n}" in piece:
            expected[piece[0] + str(number)] = len(lines) + 1
        lines += piece.replace("{n}", str(number)).split("\n")
    text = "\n".join(lines)
    assert {key: line_of(text, (key,)) for key in expected} == expected
