from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.bench.records.statistics import Summary, mean, percentile, rates

latencies = st.lists(st.floats(min_value=0, max_value=1e9), min_size=1, max_size=200)


@pytest.mark.parametrize(
    ("count", "percent", "rank"),
    [(1, 50, 1), (1, 99, 1), (2, 50, 1), (2, 51, 2), (10, 50, 5), (10, 90, 9), (10, 91, 10), (10, 99, 10), (100, 99, 99), (101, 99, 100)],
)
def test_a_percentile_is_the_nearest_rank(count: int, percent: int, rank: int) -> None:
    assert percentile(list(range(1, count + 1)), percent) == rank


def test_a_percentile_refuses_what_is_not_sorted() -> None:
    with pytest.raises(ValueError, match="sorted"):
        percentile([2.0, 1.0], 50)
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 50)
    with pytest.raises(ValueError, match=r"1\.\.100"):
        percentile([1.0], 0)


@given(latencies, st.integers(min_value=1, max_value=100))
def test_a_percentile_is_the_least_sample_that_covers_its_share(samples: list[float], percent: int) -> None:
    value = percentile(sorted(samples), percent)
    assert value in samples
    assert 100 * sum(s <= value for s in samples) >= percent * len(samples)
    assert 100 * sum(s < value for s in samples) < percent * len(samples)


@given(latencies)
def test_figures_are_in_order(samples: list[float]) -> None:
    s = Summary.of(samples)
    assert s.min <= s.p50 <= s.p90 <= s.p99 <= s.max
    assert s.min <= s.mean <= s.max
    assert s.samples == tuple(samples)


@given(latencies, st.randoms())
def test_figures_do_not_depend_on_the_order_of_runs(samples: list[float], random: object) -> None:
    shuffled = list(samples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    a, b = asdict(Summary.of(samples)), asdict(Summary.of(shuffled))
    a.pop("samples")
    b.pop("samples")
    assert a == b


@given(st.floats(min_value=0, max_value=1e12), st.integers(min_value=1, max_value=150))
def test_equal_samples_give_equal_figures(sample: float, count: int) -> None:
    s = Summary.of([sample] * count)
    assert {s.mean, s.min, s.max, s.p50, s.p90, s.p99} == {sample}


@given(latencies)
def test_a_summary_survives_json(samples: list[float]) -> None:
    s = Summary.of(samples)
    assert Summary.from_json(json.loads(json.dumps(asdict(s)))) == s


def test_a_summary_that_its_samples_contradict_is_refused() -> None:
    value = asdict(Summary.of([1.0, 2.0, 3.0]))
    for name in ("mean", "min", "max", "p50", "p90", "p99"):
        with pytest.raises(ValueError, match=name):
            Summary.from_json({**value, name: value[name] + 0.5})


@pytest.mark.parametrize("bad", [[], [math.nan], [math.inf], [1.0, -1.0]])
def test_samples_that_are_no_latencies_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="sample"):
        Summary.of(bad)


def test_one_sample_of_many_is_named_alone() -> None:
    with pytest.raises(ValueError, match="not -1") as caught:
        Summary.of([1.0] * 10_000 + [-1.0])
    assert len(str(caught.value)) < 100


@given(st.integers(min_value=1, max_value=10**6), st.lists(st.floats(min_value=1e-6, max_value=1e9), min_size=1))
def test_rate_times_latency_is_the_tokens(tokens: int, latencies_ms: list[float]) -> None:
    for rate, latency in zip(rates(tokens, latencies_ms), latencies_ms, strict=True):
        assert math.isclose(rate * latency / 1000, tokens, rel_tol=1e-12)


def test_the_mean_rate_is_not_the_rate_of_the_mean_latency() -> None:
    assert mean(rates(1, [500.0, 1500.0])) == pytest.approx((2 + 2 / 3) / 2)


def test_no_time_has_no_rate() -> None:
    with pytest.raises(ValueError, match="no time"):
        rates(1, [0.0])
