"""Axes, marks and images: positions by hand, and images that any reader of XML accepts."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.report.plots.svg import Axis, Panel, number, page, path, spanning, text, turned

POSITIVE = st.floats(1e-12, 1e15)


def test_positions_on_an_even_and_a_logarithmic_axis() -> None:
    even, log = Axis(label="", low=0, high=10), Axis(label="", low=1, high=100, log=True)
    assert (even.share(2.5), log.share(10)) == (0.25, pytest.approx(0.5))
    assert (even.share(-3), even.share(99), log.share(0)) == (0.0, 1.0, 0.0)


def test_up_is_up() -> None:
    panel = Panel(left=10, top=20, width=100, height=50, across=Axis(label="", low=0, high=1), up=Axis(label="", low=0, high=1))
    assert (panel.x(0), panel.x(1)) == (10, 110)
    assert (panel.y(0), panel.y(1)) == (70, 20)


@pytest.mark.parametrize(("low", "high", "log"), [(1, 1, False), (2, 1, False), (0, 1, True), (-1, 1, True), (0, math.inf, False)])
def test_an_axis_that_spans_nothing_is_refused(low: float, high: float, log: bool) -> None:
    with pytest.raises(ValueError, match="axis"):
        Axis(label="", low=low, high=high, log=log)


@given(low=POSITIVE, factor=st.floats(1.001, 1e12), log=st.booleans())
def test_ticks_are_few_and_within(low: float, factor: float, log: bool) -> None:
    axis = Axis(label="", low=low, high=low * factor, log=log)
    ticks = axis.ticks()
    assert len(ticks) <= 24
    assert all(axis.low * (1 - 1e-9) <= tick <= axis.high * (1 + 1e-9) for tick in ticks)
    assert list(ticks) == sorted(set(ticks))


def test_an_even_axis_has_round_ticks() -> None:
    assert Axis(label="", low=0, high=31).ticks() == (0, 10, 20, 30)
    assert Axis(label="", low=0.5, high=2, log=True).ticks() == (0.5, 0.7, 1.0, 1.5, 2.0)


@given(st.lists(POSITIVE, min_size=1), st.booleans())
def test_a_spanning_axis_holds_every_value(values: list[float], log: bool) -> None:
    axis = spanning("", values, log=log)
    assert axis.low <= min(values)
    assert max(values) <= axis.high


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0.5, 1500, 25e3, 3.12e14, 2.039e12)] == ["0.5", "1500", "25k", "312T", "2.039T"]


def test_words_are_escaped() -> None:
    image = page(10, 10, 'a < b & "c"', [text(0, 0, "<script>"), turned(0, 0, "x & y"), path([(0, 0), (1, 1)], 0, hint="1 < 2")])
    root = ElementTree.fromstring(image)
    assert root.attrib["aria-label"] == 'a < b & "c"'
    assert "<script>" not in image
    assert "".join(root.itertext()).count("<script>") == 1


def test_an_image_stands_alone_and_knows_dark_grounds() -> None:
    image = page(10, 10, "plain", [])
    assert "prefers-color-scheme: dark" in image
    assert "http" not in image.replace("http://www.w3.org/2000/svg", "")


@given(values=st.lists(st.integers(1, 4096), min_size=2, max_size=40, unique=True))
def test_an_axis_names_what_was_measured_where_there_is_room(values: list[int]) -> None:
    axis = spanning("batch", values, log=True).marking(values)
    assert axis.ticks()[0] == min(values)
    assert set(axis.ticks()) <= set(values)
    places = [axis.share(tick) for tick in axis.ticks()]
    assert all(after - before >= 0.06 for before, after in pairwise(places))
    # What is left out lies close to one that is named.
    assert all(min(abs(axis.share(value) - place) for place in places) < 0.06 for value in values)
