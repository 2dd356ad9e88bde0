"""The test behind comparisons: known values of Student's t, and how often chance is taken for a difference."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.bench.records.statistics import Summary
from inferometer.report.compare.difference import difference, significant, t_quantile, t_tail

RUNS = st.lists(st.floats(0.1, 1e5), min_size=1, max_size=8)


# From tables of the distribution, two-sided 5 % and one-sided 0.1 %.
@pytest.mark.parametrize(
    ("share", "freedom", "value"), [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 4, 2.776), (0.975, 10, 2.228), (0.999, 5, 5.893)]
)
def test_students_t_is_that_of_the_tables(share: float, freedom: float, value: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(value, abs=6e-4)
    assert t_tail(value, freedom) == pytest.approx(1 - share, rel=2e-3)


def test_one_degree_is_cauchy_and_many_are_normal() -> None:
    for value in (0.1, 1.0, 7.0, 300.0):
        assert t_tail(value, 1) == pytest.approx(0.5 - math.atan(value) / math.pi, rel=1e-9)
        assert t_tail(value, 1e7) == pytest.approx(0.5 * math.erfc(value / math.sqrt(2)), rel=1e-4, abs=1e-300)


def test_the_worked_example_by_hand() -> None:
    # Logarithms 0, ln 2 against ln 8, ln 16: means apart by ln 8, each mean's error ln 2 / 2, Welch's degrees 2.
    found = difference(Summary.of([1, 2]), Summary.of([8, 16]))
    t = 3 / math.sqrt(0.5)
    assert found.ratio == 8
    assert found.chance == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert found.interval is not None
    assert math.sqrt(found.interval[0] * found.interval[1]) == pytest.approx(8)


def test_runs_that_are_all_equal_leave_nothing_to_chance() -> None:
    assert difference(Summary.of([5] * 3), Summary.of([5] * 4)).chance == 1.0
    changed = difference(Summary.of([5] * 3), Summary.of([6] * 3))
    assert changed.chance == 0.0
    assert changed.interval == pytest.approx((1.2, 1.2))


def test_without_a_repetition_nothing_is_known_of_the_scatter() -> None:
    found = difference(Summary.of([5]), Summary.of([6]))
    assert (found.ratio, found.interval, found.chance) == (1.2, None, None)
    lent = difference(Summary.of([5]), Summary.of([5.9, 6.0, 6.1]))
    assert lent.chance is not None
    assert 0 < lent.chance < 0.05


@settings(deadline=None)
@given(RUNS, RUNS)
def test_swapping_the_sides_inverts_the_ratio_and_keeps_the_chance(a: list[float], b: list[float]) -> None:
    one, other = difference(Summary.of(a), Summary.of(b)), difference(Summary.of(b), Summary.of(a))
    assert one.ratio * other.ratio == pytest.approx(1)
    assert one.chance == (None if other.chance is None else pytest.approx(other.chance, rel=1e-6, abs=1e-12))
    if one.interval is not None:
        assert one.interval[0] <= one.interval[1]


@settings(deadline=None)
@given(RUNS, RUNS, st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(a: list[float], b: list[float], unit: float) -> None:
    plain = difference(Summary.of(a), Summary.of(b))
    scaled = difference(Summary.of(x * unit for x in a), Summary.of(x * unit for x in b))
    assert scaled.ratio == pytest.approx(plain.ratio)
    if plain.chance is not None and plain.chance > 1e-6:
        assert scaled.chance == pytest.approx(plain.chance, rel=1e-3, abs=1e-6)


def test_of_runs_that_scatter_alike_about_one_in_twenty_is_below_five_percent() -> None:
    draw = random.Random(7)
    below = 0
    for _ in range(2000):
        a, b = ([math.exp(draw.gauss(0, 0.1)) for _ in range(5)] for _ in range(2))
        below += (difference(Summary.of(a), Summary.of(b)).chance or 0.0) < 0.05
    # Five standard deviations of a count of 2,000 at 5 %; Welch's test is a little shy of it.
    assert 50 <= below <= 149


def test_many_comparisons_find_few_by_chance_and_all_that_are_there() -> None:
    draw = random.Random(3)
    chances = [draw.random() for _ in range(400)]
    assert sum(significant(chances)) <= 2
    assert significant([1e-9, *chances])[0]
    assert significant([0.04]) == [True]
    assert significant([0.04, 0.9, 0.9]) == [False, False, False]
    assert significant([0.03, 0.04, 0.049]) == [True, True, True]
    assert significant([]) == []


def test_a_time_of_zero_has_no_ratio() -> None:
    with pytest.raises(ValueError, match="no time"):
        difference(Summary.of([0, 1]), Summary.of([1]))
