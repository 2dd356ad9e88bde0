"""Errors relative to the measured value, by hand, and the file of them."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.estimate.deviation import Deviation, deviations_toml, read_deviations

from .measured_rows import refusal

POSITIVE = st.floats(0.01, 100)


def test_errors_are_relative_to_what_was_measured() -> None:
    found = Deviation.of([("slow", 100.0, 50.0), ("fast", 10.0, 12.0)])
    assert found.rows == 2
    assert found.mean == pytest.approx((0.5 + 0.2) / 2)
    assert (found.worst, found.worst_id) == (pytest.approx(0.5), "slow")


def test_nine_in_ten_ratios_lie_between_low_and_high() -> None:
    rows = [(str(i), 1.0 + i / 100, 1.0) for i in range(101)]
    found = Deviation.of(rows)
    assert (found.low, found.high) == (pytest.approx(1.05), pytest.approx(1.95))


@pytest.mark.parametrize("rows", [[], [("a", 0.0, 1.0)], [("a", 1.0, -1.0)], [("a", 1.0, float("inf"))]])
def test_figures_are_positive_and_there_are_some(rows: list[tuple[str, float, float]]) -> None:
    with pytest.raises(ValueError, match=r"at least one row|positive"):
        Deviation.of(rows)


@settings(deadline=None)
@given(st.lists(st.tuples(st.uuids().map(str), POSITIVE, POSITIVE), min_size=1, max_size=9))
def test_the_file_gives_back_what_was_written(rows: list[tuple[str, float, float]]) -> None:
    found = Deviation.of(rows)
    back = read_deviations(tomllib.loads(deviations_toml({"a regime": found})))["a regime"]
    assert (back.rows, back.worst_id) == (found.rows, found.worst_id)
    assert back.mean == pytest.approx(found.mean, abs=5.1e-5)
    assert back.worst == pytest.approx(found.worst, abs=5.1e-5)


def test_an_error_of_nothing_can_be_kept() -> None:
    exact = {"a": Deviation.of([("b", 3.0, 3.0)])}
    assert read_deviations(tomllib.loads(deviations_toml(exact)))["a"].mean == 0


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["rows", "mean_percent", "worst_percent", "worst_id", "low", "high", "more"]),
        st.sampled_from([1, 0, -1, 1.5, "x", "", None, [], {}, True, float("nan")]),
    )
)
def test_a_damaged_file_is_one_line(values: dict[str, Any]) -> None:
    said = refusal(lambda: read_deviations({"a regime": values}))
    assert said is None or said.startswith("errors.toml: a regime")
