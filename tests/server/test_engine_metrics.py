"""Totals of the engine, the window that "now" is, and the gaps between tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.server.buckets import BATCH_SIZES, DURATIONS, Tally, hundred_steps
from inferometer.server.engine_metrics import IDLE, EngineMetrics
from inferometer.server.generation import Times
from inferometer.server.messages import Load, Ready, Step
from inferometer.server.step_prices import StepPrice
from inferometer.server.sweep_clock import SweepClock

READY = Ready(pages=100, page_size=16, page_bytes=64, seats=8, dtype="float32", device="cpu", device_name=None, device_slug=None)


class Prices:
    """Every step: bound 2 ms of which memory binds 1.5, predicted 3."""

    basis = "datasheet"

    def price(self, load: Load) -> StepPrice:
        return StepPrice(0.002, 0.0015, 0.003, 0.0016, 0.0004)


class Going:
    """As much of a generation as the metrics look at."""

    def __init__(self, arrived: float | None) -> None:
        self.times = Times(0.0, arrived=arrived)


def metrics(prices: Any = None) -> EngineMetrics:
    return EngineMetrics(SweepClock(behind=False), READY, prices, lambda work: work())


def step(load: Load, ids: Sequence[int] = ()) -> Step:
    return Step((), tuple(ids), tuple(ids), (0.0,) * len(ids), {}, load)


def samples(observed: EngineMetrics) -> dict[str, float]:
    observed.show()
    return {sample.name: sample.value for family in observed.collect() for sample in family.samples if "le" not in sample.labels}


def test_what_was_done_stands_beside_what_it_should_have_taken() -> None:
    observed = metrics(Prices())
    for _ in range(4):
        observed.step(step(replace(IDLE, running=2, decode_tokens=2, context_tokens=8, pages_in_use=3, sweep_ms=4.0), [1, 2]), [], 0.0)
    found = samples(observed)
    assert found["inferometer_steps_total"] == 4
    assert found["inferometer_emitted_tokens_total"] == 8
    assert found["inferometer_step_seconds_total"] == pytest.approx(0.016)
    assert found["inferometer_step_bound_seconds_total"] == pytest.approx(0.008)
    assert found["inferometer_step_predicted_seconds_total"] == pytest.approx(0.012)
    assert found["inferometer_mbu_ratio"] == pytest.approx(0.4)
    assert found["inferometer_mfu_ratio"] == pytest.approx(0.1)
    assert (found["inferometer_requests_running"], found["inferometer_kv_pages_in_use"]) == (2, 3)
    rates = observed.rates()
    assert (rates.step_ms, rates.bound_ms, rates.predicted_ms) == (pytest.approx(4), pytest.approx(2), pytest.approx(3))
    assert rates.binds == "memory"


def test_without_prices_there_are_times_and_no_bound() -> None:
    observed = metrics()
    observed.step(step(replace(IDLE, decode_tokens=1, sweep_ms=4.0), [1]), [], 0.0)
    assert not [name for name in samples(observed) if "bound" in name or "mbu" in name or "predicted" in name]
    assert (observed.rates().step_ms, observed.rates().mbu, observed.basis) == (pytest.approx(4), None, None)


def test_what_is_long_past_is_not_now(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    observed = metrics(Prices())
    for _ in range(50):
        clock[0] += 0.5
        observed.step(step(replace(IDLE, decode_tokens=3, sweep_ms=250.0), [1, 2, 3]), [], 0.0)
    assert observed.rates().generated_tok_s == pytest.approx(6, rel=0.15)
    assert observed.rates().busy == pytest.approx(0.5, rel=0.15)
    clock[0] += 60
    rates = observed.rates()
    assert (rates.generated_tok_s, rates.busy, rates.step_ms, rates.mbu) == (0, 0, None, None)
    assert observed.totals.emitted == 150
    assert len(observed._past) < 20


def test_a_failed_step_leaves_nothing_running_and_counters_only_grow() -> None:
    observed = metrics()
    observed.step(step(replace(IDLE, running=3, pages_in_use=9, hit_tokens=32, preemptions=2, decode_tokens=1)), [], 0.0)
    observed.broken(prompts=False)
    found = samples(observed)
    assert (found["inferometer_requests_running"], found["inferometer_kv_pages_in_use"], found["inferometer_failed_steps_total"]) == (
        0,
        0,
        1,
    )
    observed.step(step(replace(IDLE, hit_tokens=48, preemptions=2, prompt_tokens=1)), [], 0.0)
    assert samples(observed)["inferometer_prefix_cache_hit_tokens_total"] >= 32


def test_a_gap_is_between_two_tokens_of_one_sequence() -> None:
    observed = metrics()
    observed.step(step(IDLE, [1, 2, 3]), [Going(None), Going(9.5), Going(9.75)], 10.0)  # type: ignore[list-item]
    found = samples(observed)
    assert found["inferometer_inter_token_latency_seconds_count"] == 2
    assert found["inferometer_inter_token_latency_seconds_sum"] == pytest.approx(0.75)


@given(st.lists(st.floats(0, 1000)))
def test_a_tally_is_a_histogram(values: list[float]) -> None:
    tally = Tally(DURATIONS)
    for value in values:
        tally.add(value)
    counts = tally.cumulative()
    assert counts[-1] == ("+Inf", len(values))
    assert tally.count == len(values)
    assert tally.sum == pytest.approx(sum(values))
    for name, count in counts[:-1]:
        assert count == sum(value <= float(name) for value in values)


def test_buckets_are_those_of_text_generation_inference() -> None:
    assert len(DURATIONS) == 35
    assert (DURATIONS[0], DURATIONS[-1]) == (pytest.approx(0.00015), pytest.approx(0.0001 * 1.5**35))
    assert (len(BATCH_SIZES), BATCH_SIZES[0], BATCH_SIZES[-1]) == (1024, 1, 1024)
    assert list(hundred_steps(1512)) == pytest.approx([15.12 * step for step in range(1, 101)])
