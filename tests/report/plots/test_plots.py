"""The plots: every figure that goes in is there to be found, with the labels and units of its axes."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from validation_reports import reports

from inferometer.report.plots.kinds import OpMark, Series, bars, breakdown, error_scatter, roofline, sweep

SVG = "{http://www.w3.org/2000/svg}"
OPS = [
    OpMark(name="qkv", ms=2.0, bound_ms=1.5, flops=4e11, bytes=1e9, binds="tensor"),
    OpMark(name="norm", ms=0.5, bound_ms=0.1, flops=1e6, bytes=1e6, binds="memory"),
    OpMark(name="all_reduce", ms=0.25, bound_ms=0.2, flops=0, bytes=0, binds="link"),
]


def _words(image: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(image).iter() if each.tag in (f"{SVG}text", f"{SVG}title")]


def _count(image: str, tag: str) -> int:
    return sum(1 for _ in ElementTree.fromstring(image).iter(f"{SVG}{tag}"))


def test_every_prediction_is_a_dot_and_fitted_ones_are_hollow() -> None:
    image = error_scatter(reports())
    dots = list(ElementTree.fromstring(image).iter(f"{SVG}circle"))
    assert [each.get("fill") for each in dots] == ["none", None, None]
    words = _words(image)
    assert "predicted / measured (ratio; 1 is exact)" in words
    assert "first" in words
    assert "second" not in words
    assert "b: measured 20, predicted 25 (+25.0 %)" in words


def test_errors_out_of_reach_are_drawn_at_the_edge() -> None:
    dots = list(ElementTree.fromstring(error_scatter(reports(99.0))).iter(f"{SVG}circle"))
    assert {float(each.get("cx", "0")) for each in dots} == {830.0}


def test_a_scatter_needs_a_prediction() -> None:
    with pytest.raises(ValueError, match="no prediction"):
        error_scatter(reports()[1:])


def test_the_roofline_has_a_dot_for_each_op_that_computes() -> None:
    image = roofline("a title", {"prefill": OPS}, flop_s=312e12, bytes_s=2e12)
    words = _words(image)
    assert "arithmetic intensity (FLOP/byte)" in words
    assert "rate (FLOP/s)" in words
    assert "qkv 73 %" in words
    assert "prefill, norm: 0.5 ms (18 %), bound 0.1 ms, memory" in words
    assert not any("all_reduce" in word for word in words)
    assert "312TFLOP/s" in words


def test_a_dot_is_below_the_roof() -> None:
    image = roofline("a title", {"prefill": OPS}, flop_s=312e12, bytes_s=2e12)
    qkv = next(each for each in ElementTree.fromstring(image).iter(f"{SVG}circle") if (each[0].text or "").startswith("prefill, qkv"))
    roof = next(ElementTree.fromstring(image).iter(f"{SVG}polyline")).get("points", "").split()
    flat = float(roof[-1].split(",")[1])
    assert float(qkv.get("cy", "0")) > flat


def test_the_breakdown_has_a_bar_for_each_op_and_its_bound() -> None:
    image = breakdown("a title", {"prefill": OPS, "decode": OPS[:2]})
    assert _count(image, "rect") == 2 * 5
    words = _words(image)
    assert "prefill: time of all layers (ms)" in words
    assert "decode: time of all layers (ms)" in words
    assert "73 %, tensor" in words


def test_a_sweep_draws_its_lines_points_and_intervals() -> None:
    series = [
        Series(name="decode", points=((1, 5.0), (2, 6.0), (4, 8.0)), interval=((4.0, 6.0), (5.0, 7.0), (6.0, 10.0))),
        Series(name="bound", points=((1, 3.0), (2, 3.0), (4, 3.5))),
    ]
    image = sweep("a title", "batch (sequences)", "time (ms)", series)
    assert _count(image, "polyline") == 2
    assert _count(image, "rect") == 3
    assert {"batch (sequences)", "time (ms)", "decode", "bound", "decode: 4, 8"} <= set(_words(image))


def test_cards_are_bars_in_their_order() -> None:
    words = _words(bars("a title", "time (ms)", {"h100-sxm": (2.0, 1.0), "t4": (9.0, None)}))
    assert words.index("h100-sxm") < words.index("t4")
    assert "h100-sxm: bound 1" in words


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match="no time"):
        breakdown("", {"a": []})
    with pytest.raises(ValueError, match="no op here"):
        roofline("", {"prefill": OPS[2:]}, flop_s=1.0, bytes_s=1.0)
    with pytest.raises(ValueError, match="needs a value"):
        sweep("", "", "", [])
