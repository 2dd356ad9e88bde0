"""Charts of the page: what they draw, where labels go, and that nothing of others' words is mark-up."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.report.page.chart import Chart, Failure, Line, Point, scale, spread, steps


def drawn(**changes: object) -> str:
    line = Line(colour=0, name="native", points=(Point(x=1, y=10, hint="one", low=9, high=11), Point(x=8, y=40, hint="eight")))
    given = {"title": "latency", "across": steps("batch size", [1, 8]), "up": scale("ms", [9, 40]), "lines": (line,), "ticks": (1.0, 8.0)}
    return Chart(**{**given, **changes}).svg()  # type: ignore[arg-type]


class Texts(HTMLParser):
    """The elements of a document, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_chart_has_marks_with_hints_axes_and_the_lines_name() -> None:
    image = drawn()
    assert image.count("<circle") == 2
    assert "<title>one</title>" in image
    assert 'aria-label="latency"' in image
    for words in ("batch size", "ms", "native"):
        assert f">{words}</text>" in image
    assert image.count("class=w ") == 1  # the spread of the one point that has one


def test_failures_stand_at_their_place_with_their_word_and_why() -> None:
    lost = tuple(Failure(colour=0, name="native", x=x, word="oom", hint=f"batch {x}: oom. 2 GiB short") for x in (4, 8))
    image = drawn(failures=lost)
    assert image.count("class=x ") == 2
    assert image.count(">oom</text>") == 1
    assert "batch 4: oom. 2 GiB short" in image


@settings(deadline=None)
@given(st.text())
def test_words_of_others_are_text(words: str) -> None:
    point = Point(x=1, y=10, hint=words)
    image = drawn(lines=(Line(colour=0, name=words or "x", points=(point, Point(x=8, y=40, hint=""))),), title=words)
    plain = drawn(lines=(Line(colour=0, name="x", points=(Point(x=1, y=10, hint="h"), Point(x=8, y=40, hint=""))),))
    assert Texts(image).elements == Texts(plain).elements


@settings(deadline=None)
@given(st.lists(st.floats(-50, 250), min_size=1, max_size=12).map(sorted))
def test_labels_keep_their_order_and_distance_within_the_panel(wanted: list[float]) -> None:
    found = spread(wanted, gap=14, low=0, high=200)
    assert found == sorted(found)
    assert all(b - a >= 14 - 1e-6 for a, b in pairwise(found))
    assert found[0] >= 0
    assert found[-1] <= 200 + 1e-6


def test_labels_with_room_stay_where_they_are() -> None:
    assert spread([20, 60, 100], gap=14, low=0, high=200) == [20, 60, 100]


def test_scales_hold_all_values_and_are_logarithmic_where_values_are_far_apart() -> None:
    assert (scale("", [1, 100]).log, scale("", [10, 40]).log, scale("", [0, 100]).log) == (True, False, False)
    assert scale("", [10, 40]).low == 0
    with pytest.raises(ValueError, match="needs a value"):
        scale("", [])
    with pytest.raises(ValueError, match="needs a value"):
        steps("", [])


@settings(deadline=None)
@given(st.lists(st.integers(1, 4096), min_size=1, max_size=12))
def test_settings_lie_within_their_axis(sizes: list[int]) -> None:
    axis = steps("batch size", sizes)
    assert axis.low < min(sizes)
    assert max(sizes) < axis.high


def test_many_columns_are_told_apart_by_hollow_marks_and_lose_their_names_before_they_overlap() -> None:
    lines = tuple(Line(colour=n, name=f"c{n}", points=(Point(x=1, y=n + 1, hint=""), Point(x=8, y=n + 2, hint=""))) for n in range(20))
    image = drawn(lines=lines)
    assert 'class="c0 more"' in image
    assert ">c3</text>" not in image
