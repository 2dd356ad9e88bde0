"""The captured form of the sampler: what `sample` gives, bit by bit, from tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured_steps import CPU, VOCABULARY, Captured, eager, logits_of
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.engine.captured_sampler import CapturedSampler, SamplerGraphs
from inferometer.engine.draws import DRAWS
from inferometer.engine.sampler import SamplingBatch, SamplingRow
from inferometer.engine.sampling_plan import GREEDY, LARGEST_K, Signature
from inferometer.schedule.sampling import SamplingParams

quick = settings(deadline=None, max_examples=40)


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    """Anything a captured sampler serves."""
    options: dict[str, st.SearchStrategy[Any]] = {
        "do_sample": st.booleans(),
        "temperature": st.sampled_from([0.0, 1e-8, 0.7, 1.0, 1.3, 1e30]),
        "top_k": st.integers(1, VOCABULARY + 5) | st.just(10**30),
        "top_p": st.floats(0.01, 1) | st.just(5e-324),
        "typical_p": st.floats(0.01, 1) | st.just(5e-324),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(options)), max_size=4))
    return SamplingParams(**{name: draw(options[name]) for name in sorted(chosen)})


def rows_of(params: st.SearchStrategy[SamplingParams], most: int) -> st.SearchStrategy[list[SamplingRow]]:
    return st.lists(
        st.builds(SamplingRow, params, st.integers(0, 2**64 - 1), st.just([1]), st.sampled_from([(), (3, 4)])), min_size=1, max_size=most
    )


def batch_of(*wanted: dict[str, Any], vocabulary: int = VOCABULARY, eos: tuple[int, ...] = ()) -> SamplingBatch:
    return SamplingBatch.build([SamplingRow(SamplingParams(**w), i, [1], (), eos) for i, w in enumerate(wanted)], vocabulary, CPU)


@quick
@given(rows_of(params(), 6), rows_of(params(), 3), st.integers(0, 1000), st.data())
def test_any_mix_gets_the_tokens_and_log_probabilities_of_the_eager_sampler_bit_by_bit(
    first: list[SamplingRow], second: list[SamplingRow], seed: int, data: st.DataObject
) -> None:
    captured = Captured(9)
    ours, theirs = SamplingBatch.build(first, VOCABULARY, CPU), SamplingBatch.build(first, VOCABULARY, CPU)

    def step(at: int) -> None:
        logits = logits_of(len(ours), seed + at)
        assert captured.step(logits, ours) == eager(logits, theirs)

    for at in range(3):
        step(at)
    order = data.draw(st.permutations(range(len(first))))[: data.draw(st.integers(0, len(first)))]
    ours, theirs = ours.select(order), theirs.select(order)
    ours.extend(SamplingBatch.build(second, VOCABULARY, CPU))
    theirs.extend(SamplingBatch.build(second, VOCABULARY, CPU))
    for at in range(3, 6):
        step(at)


@pytest.mark.parametrize("wanted", [{"do_sample": True}, {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "typical_p": 0.9}], ids=str)
def test_a_long_run_goes_on_from_plan_to_plan(wanted: dict[str, Any]) -> None:
    captured, ours, theirs = Captured(4), batch_of(wanted, {}, wanted), batch_of(wanted, {}, wanted)
    for at in range(3 * DRAWS + 2):
        logits = logits_of(3, at)
        assert captured.step(logits, ours) == eager(logits, theirs), at


def test_captured_and_eager_steps_may_take_turns() -> None:
    captured, ours, theirs = Captured(2), batch_of({"do_sample": True}), batch_of({"do_sample": True})
    for at in range(12):
        logits = torch.zeros(1, VOCABULARY)
        mine = captured.step(logits, ours) if at % 4 < 2 else eager(logits, ours)
        assert mine == eager(logits, theirs), at


def test_two_batches_may_share_a_sampler() -> None:
    captured = Captured(2)
    ours, theirs = ([batch_of({"do_sample": True}, {}), batch_of({}, {"do_sample": True})] for _ in range(2))
    for at in range(6):
        for mine, other in zip(ours, theirs, strict=True):
            logits = logits_of(2, at)
            assert captured.step(logits, mine) == eager(logits, other)


def test_one_load_serves_the_steps_of_a_plan_and_a_step_can_be_taken_twice() -> None:
    batch, theirs, logits = batch_of({"do_sample": True}), batch_of({"do_sample": True}), torch.zeros(1, VOCABULARY)
    plan = batch.plan()
    assert plan.signature is not None
    sampler = CapturedSampler(1, plan.signature, CPU)
    expected = [eager(logits, theirs)[0] for _ in range(5)]
    sampler.load(plan)
    drawn = []
    for _ in range(5):
        sampler.run(logits)
        drawn.append(sampler.places.token_ids.tolist())
        batch.update(sampler.places.token_ids)
    assert drawn == expected
    again = batch_of({"do_sample": True}).plan()
    for _ in range(2):
        sampler.load(again)
        sampler.run(logits)
        assert sampler.places.token_ids.tolist() == expected[0]


def test_what_ran_before_the_first_load_leaves_no_trace() -> None:
    def warmed(function: Callable[[], None]) -> Callable[[], None]:
        for _ in range(3):
            function()
        return function

    captured, ours, theirs = Captured(2, graph=warmed), batch_of({"do_sample": True}), batch_of({"do_sample": True})
    for at in range(4):
        logits = logits_of(1, at)
        assert captured.step(logits, ours) == eager(logits, theirs)


def test_everything_stays_in_its_place_and_unloaded_rows_are_greedy_again() -> None:
    sampling, greedy = {"do_sample": True, "top_k": 2}, {"top_k": 2}
    full, small = batch_of(sampling, sampling, sampling), batch_of(greedy)
    plan = full.plan()
    assert plan.signature is not None
    sampler = CapturedSampler(3, plan.signature, CPU)
    sampler.load(plan)
    places = sampler.places.token_ids.data_ptr(), sampler.places.logprobs.data_ptr()
    logits = torch.zeros(3, VOCABULARY)
    logits[:, 5] = 1e4
    sampler.run(logits)
    logits[1:, 7] = 2e4
    sampler.load(small.plan())
    sampler.run(logits)
    assert sampler.places.token_ids.tolist() == [5, 7, 7]
    assert (sampler.places.token_ids.data_ptr(), sampler.places.logprobs.data_ptr()) == places
    assert logits[0, 5] == 1e4


UNCAPTURABLE = [
    {"repetition_penalty": 2.0},
    {"frequency_penalty": 1.0},
    {"presence_penalty": 1.0},
    {"logit_bias": {3: 1.0}},
    {"min_new_tokens": 1},
    {"watermark": True},
    {"top_logprobs": 1},
    {"top_k": LARGEST_K + 1},
]


@pytest.mark.parametrize("wanted", UNCAPTURABLE, ids=str)
def test_what_needs_more_than_filters_is_left_to_the_eager_sampler(wanted: dict[str, Any]) -> None:
    plan = batch_of({}, wanted, {"do_sample": True}, vocabulary=2000, eos=(2,)).plan()
    assert plan.signature is None
    assert SamplerGraphs(CPU).sampler_for(4, plan) is None


def test_end_tokens_that_may_come_again_do_not_stand_in_the_way() -> None:
    batch = batch_of({"min_new_tokens": 1}, eos=(2,))
    assert batch.plan().signature is None
    batch.update(torch.tensor([3]))
    assert batch.plan().signature == GREEDY


@pytest.mark.parametrize(
    ("k", "vocabulary", "rounded"), [(1, 24, 1), (3, 24, 4), (16, 24, 16), (17, 24, 24), (24, 24, 0), (500, 2000, 512), (1024, 2000, 1024)]
)
def test_signatures_say_what_is_there_with_k_rounded_up(k: int, vocabulary: int, rounded: int) -> None:
    batch = batch_of({}, {"top_k": k}, {"top_k": 1}, vocabulary=vocabulary)
    expected = Signature(samples=True, temperature=False, largest_k=rounded or 1, top_p=False, typical_p=False)
    assert batch.plan().signature == expected
    assert batch_of({}, {"top_k": 10**30}, vocabulary=vocabulary).plan().signature == Signature(True, False, 0, False, False)
    assert batch_of({}, {"temperature": 0.0, "top_p": 0.1}).plan().signature == GREEDY
    assert batch_of({"top_p": 0.5}, {"temperature": 2.0}, {"typical_p": 0.5}).plan().signature == Signature(True, True, 0, True, True)


def test_the_largest_k_is_served_and_gives_what_the_eager_sampler_gives() -> None:
    wanted = [{"top_k": LARGEST_K, "temperature": 5.0}, {}, {"top_k": 700}]
    ours, theirs = (batch_of(*wanted, vocabulary=3000) for _ in range(2))
    sampler = SamplerGraphs(CPU).sampler_for(3, ours.plan())
    assert sampler is not None
    for at in range(10):
        logits = logits_of(3, at, 3000)
        sampler.load(ours.plan())
        sampler.run(logits)
        assert (sampler.places.token_ids.tolist(), sampler.places.logprobs.tolist()) == eager(logits, theirs)
        ours.update(sampler.places.token_ids)


def test_samplers_are_kept_until_there_are_too_many_of_them() -> None:
    graphs = SamplerGraphs(CPU, most=2)
    greedy, drawn, filtered = (batch_of(w).plan() for w in ({}, {"do_sample": True}, {"top_p": 0.5}))
    first, second = graphs.sampler_for(4, greedy), graphs.sampler_for(4, drawn)
    assert graphs.sampler_for(4, batch_of({}, {}).plan()) is first
    graphs.sampler_for(4, filtered)
    assert len(graphs) == 2
    assert graphs.sampler_for(4, greedy) is first
    assert graphs.sampler_for(4, drawn) is not second
    assert graphs.sampler_for(8, greedy) is not first


def test_a_plan_that_does_not_belong_is_refused() -> None:
    sampler = CapturedSampler(1, GREEDY, CPU)
    for batch in (batch_of({"do_sample": True}), batch_of({}, {}), batch_of({"top_logprobs": 2})):
        with pytest.raises(ValueError, match="in a sampler of 1 rows"):
            sampler.load(batch.plan())
