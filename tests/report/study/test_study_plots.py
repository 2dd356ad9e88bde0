"""A study's plots: a mark for each figure, none for what is not there."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from report_records import ran, study_of

from inferometer.report.plots.bar_plot import BarSeries, grouped_bars
from inferometer.report.study.plots import plots

SVG = "{http://www.w3.org/2000/svg}"
STUDY = """
[fixed]
model = "opt-125m"
sequence_length = 8
decode_length = 5
[[part]]
name = "sweep"
axes = { batch_size = [1, 2] }
columns = [{ name = "old", backend = "hf" }, { name = "new", backend = "native" }]
[[plot]]
part = "sweep"
title = "Speed-up"
kind = "bars"
rows = [{ axis = "batch_size", heading = "batch" }]
cell = "latency"
columns = [{ heading = "old / new", ratio = ["old", "new"] }, { heading = "theirs", given = { 1 = 3.5 }, source = "a page" }]
[[plot]]
part = "sweep"
title = "Throughput & more"
kind = "lines"
rows = "batch_size"
columns = "column"
cell = "throughput"
log = true
"""


def marks(image: str, tag: str) -> list[str]:
    """What each mark says when it is pointed at."""
    return [title.text or "" for each in ET.fromstring(image).iter(SVG + tag) for title in each.iter(SVG + "title")]


def test_bars_and_lines_of_the_records() -> None:
    records = [ran("old", prefill=[10.0], token=[10.0], backend="hf"), ran("new", prefill=[5.0], token=[5.0])]
    records += [ran("old", batch_size=2, status="oom", evidence="full", backend="hf"), ran("new", prefill=[5.0], token=[5.0], batch_size=2)]
    found = plots(study_of(STUDY), records)
    assert list(found) == ["1-speed-up.svg", "2-throughput-more.svg"]
    title, bars = found["1-speed-up.svg"]
    assert title == "Speed-up"
    assert marks(bars, "rect") == ["old / new, 1: 2", "theirs (published), 1: 3.5"]
    assert "pale: not measured here" in bars
    assert "latency, old / new" in bars
    _, lines = found["2-throughput-more.svg"]
    assert marks(lines, "circle") == ["old: 1, 100", "new: 1, 200", "new: 2, 400"]
    assert "throughput (tokens/s)" in lines


def test_a_plot_without_figures_is_left_out() -> None:
    assert plots(study_of(STUDY), [ran("new", status="error", evidence="no")]) == {}


def test_bars_are_as_high_as_their_values() -> None:
    image = grouped_bars(
        "T", "x", "y", ["a", "b"], [BarSeries(name="s", values=(1.0, 4.0)), BarSeries(name="t", values=(None, 2.0), pale=True)]
    )
    heights = [float(each.get("height") or 0) for each in ET.fromstring(image).iter(SVG + "rect")]
    first, second, third = heights
    assert second / first == pytest.approx(4, rel=0.01)
    assert third / first == pytest.approx(2, rel=0.01)


def test_a_series_has_a_value_for_each_group() -> None:
    with pytest.raises(ValueError, match="a value, or None, for each of the 2 groups"):
        grouped_bars("T", "x", "y", ["a", "b"], [BarSeries(name="s", values=(1.0,))])
