"""What a step should take, from what is told of it, and which time belongs to which step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.estimate import estimate
from inferometer.estimate.bound import bound
from inferometer.estimate.limits import limits
from inferometer.hardware.catalogue import find_device
from inferometer.model.description import describe
from inferometer.model.formats import Formats
from inferometer.model.spec import ModelSpec
from inferometer.model.step import mixed
from inferometer.model.work import work
from inferometer.server.messages import Load, Ready
from inferometer.server.step_prices import StepPrices, step_prices
from inferometer.server.sweep_clock import SweepClock
from tiny_models import tiny_model

READY = Ready(
    pages=100, page_size=16, page_bytes=1, seats=128, dtype="bfloat16", device="cuda:0", device_name="H100", device_slug="h100-sxm"
)
EMPTY = Load(0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return describe("opt-6.7b", config_only=True).spec


@pytest.fixture(scope="module")
def prices(spec: ModelSpec) -> StepPrices:
    found = step_prices(spec, READY)
    assert found is not None
    return found


def test_a_decode_step_costs_what_the_estimator_says(spec: ModelSpec, prices: StepPrices) -> None:
    price = prices.price(replace(EMPTY, decode_tokens=16, context_tokens=16 * 513))
    told = estimate(spec, "h100-sxm", batch_size=16, sequence_length=512, decode_length=2, dtype="bfloat16", calibration=None)
    assert price.bound_s * 1e3 == pytest.approx(told.bound["decode_token_ms"], rel=0.01)
    assert price.predicted_s * 1e3 == pytest.approx(told.decode_token_ms, rel=0.01)
    assert price.memory_bound_s > 0.9 * price.bound_s
    assert prices.basis == "datasheet"


@given(
    prompts=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 1000)), max_size=4),
    contexts=st.lists(st.integers(1, 1500), max_size=64),
)
def test_a_mixed_step_is_near_the_bound_of_what_it_exactly_was(
    spec: ModelSpec, prices: StepPrices, prompts: list[tuple[int, int]], contexts: list[int]
) -> None:
    if not prompts and not contexts:
        return
    load = replace(
        EMPTY,
        prompt_tokens=sum(tokens for tokens, _ in prompts),
        pieces=len(prompts),
        piece_context_tokens=sum(before for _, before in prompts),
        decode_tokens=len(contexts),
        context_tokens=sum(contexts) + len(contexts),
    )
    exact = bound(work(spec, mixed(prompts, contexts), Formats(dtype="bfloat16")), limits(find_device("h100-sxm")))
    price = prices.price(load)
    assert price.bound_s * 1e3 == pytest.approx(exact.ms, rel=0.03)
    assert price.bound_s <= price.predicted_s
    assert max(price.memory_s, price.compute_s) <= price.bound_s * (1 + 1e-9)


def test_nothing_is_priced_where_too_little_is_known(spec: ModelSpec, tmp_path: Path) -> None:
    assert step_prices(spec, replace(READY, device_slug=None)) is None
    assert step_prices(describe(str(tiny_model(tmp_path, "bert")), config_only=True).spec, READY) is None


def test_on_the_processor_a_step_is_its_own() -> None:
    clock = SweepClock(behind=False)
    first = replace(EMPTY, prompt_tokens=5, sweep_ms=2.0)
    assert clock.pair(first) == (first, 0.002)
    assert clock.pair(replace(EMPTY, sweep_ms=1.0)) is None


def test_on_a_gpu_the_time_is_that_of_the_sweep_before() -> None:
    clock = SweepClock(behind=True)
    first, second = replace(EMPTY, prompt_tokens=5, sweep_ms=1.0), replace(EMPTY, decode_tokens=1, sweep_ms=20.0)
    assert clock.pair(first) is None
    assert clock.pair(second) == (first, pytest.approx(0.021))  # with its launch
    assert clock.pair(replace(EMPTY, sweep_ms=6.0)) == (second, pytest.approx(0.006))
    assert clock.pair(replace(EMPTY, sweep_ms=0.0)) is None
    assert clock.pair(first) is None
    assert clock.pair(second) == (first, pytest.approx(0.021))  # nothing is left from before the rest


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 100)), max_size=30), st.booleans())
def test_every_sweep_is_told_once_and_no_time_twice(steps: list[tuple[int, int, float]], behind: bool) -> None:
    clock = SweepClock(behind=behind)
    loads = [replace(EMPTY, prompt_tokens=prompt, decode_tokens=decode, sweep_ms=spent) for prompt, decode, spent in [*steps, (0, 0, 0.0)]]
    told = [over for load in loads if (over := clock.pair(load)) is not None]
    assert [load for load, _ in told] == [load for load in loads if load.prompt_tokens or load.decode_tokens]
    assert sum(seconds for _, seconds in told) <= sum(load.sweep_ms for load in loads) / 1e3 + 1e-9
