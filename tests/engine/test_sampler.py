"""The sampler as a whole: order of the steps, independence of the rows, life of a batch, numbers that are none."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from inferometer.engine.random import signed, uniform
from inferometer.engine.sampler import Sampled, SamplingBatch, SamplingRow, sample
from inferometer.engine.sampling_plan import DRAWS, GREEDY, Signature
from inferometer.errors import UserError
from inferometer.schedule.sampling import SamplingParams

VOCABULARY = 24
CPU = torch.device("cpu")
EOS = (2,)
quick = settings(deadline=None, max_examples=60)

tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    """Anything a request may ask, each option left alone half the time."""
    options: dict[str, st.SearchStrategy[Any]] = {
        "do_sample": st.booleans(),
        "temperature": st.sampled_from([0.0, 1e-8, 0.5, 0.7, 1.3, 5.0, 1e30]),
        "top_k": st.integers(1, VOCABULARY + 5),
        "top_p": st.floats(0.01, 1),
        "typical_p": st.floats(0.01, 1),
        "repetition_penalty": st.floats(0.5, 2),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100), max_size=3),
        "min_new_tokens": st.integers(0, 6),
        "stop_token_ids": st.lists(st.integers(0, VOCABULARY - 1), max_size=2),
        "ignore_eos": st.booleans(),
        "watermark": st.booleans(),
        "top_logprobs": st.integers(0, VOCABULARY),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(options)), max_size=6))
    return SamplingParams(**{name: draw(options[name]) for name in sorted(chosen)})


rows_of_any_kind = st.lists(
    st.builds(SamplingRow, params(), st.integers(0, 2**64 - 1), tokens, st.just(()) | tokens, st.just(EOS)), min_size=1, max_size=6
)


def logits_of(rows: int, seed: int, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def one(sampled: Sampled, row: int) -> tuple[int, float, tuple[tuple[int, float], ...]]:
    return int(sampled.token_ids[row].item()), sampled.logprobs[row].item(), sampled.tops()[row]


def batch_of(*wanted: dict[str, Any], seed: int = 0, vocabulary: int = VOCABULARY, eos: tuple[int, ...] = ()) -> SamplingBatch:
    return SamplingBatch.build([SamplingRow(SamplingParams(**w), seed + i, [1], (), eos) for i, w in enumerate(wanted)], vocabulary, CPU)


@quick
@given(rows_of_any_kind, st.integers(0, 1000))
def test_a_row_in_a_mixed_batch_is_the_row_alone_bit_by_bit(rows: list[SamplingRow], seed: int) -> None:
    together = SamplingBatch.build(rows, VOCABULARY, CPU)
    alone = [SamplingBatch.build([row], VOCABULARY, CPU) for row in rows]
    for step in range(4):
        logits = logits_of(len(rows), seed + step)
        sampled = sample(logits, together)
        for i, batch in enumerate(alone):
            own = sample(logits[i : i + 1], batch)
            assert one(sampled, i) == one(own, 0)
            batch.update(own.token_ids)
        together.update(sampled.token_ids)


@quick
@given(rows_of_any_kind, rows_of_any_kind, st.integers(0, 1000), st.data())
def test_departures_and_arrivals_change_nothing_for_the_others(
    first: list[SamplingRow], second: list[SamplingRow], seed: int, data: st.DataObject
) -> None:
    batch = SamplingBatch.build(first, VOCABULARY, CPU)
    alone = [SamplingBatch.build([row], VOCABULARY, CPU) for row in first]

    def step(at: int) -> None:
        logits = logits_of(len(alone), seed + at)
        sampled = sample(logits, batch)
        for i, single in enumerate(alone):
            own = sample(logits[i : i + 1], single)
            assert one(sampled, i) == one(own, 0)
            single.update(own.token_ids)
        batch.update(sampled.token_ids)

    step(0)
    step(1)
    order = data.draw(st.permutations(range(len(first))))[: data.draw(st.integers(0, len(first)))]
    batch, alone = batch.select(order), [alone[i] for i in order]
    assert len(batch) == len(order)
    step(2)
    batch.extend(SamplingBatch.build(second, VOCABULARY, CPU))
    alone += [SamplingBatch.build([row], VOCABULARY, CPU) for row in second]
    step(3)
    step(4)


@quick
@given(rows_of_any_kind, st.integers(0, 1000))
def test_a_sequence_taken_up_again_goes_on_as_if_it_had_never_left(rows: list[SamplingRow], seed: int) -> None:
    batch = SamplingBatch.build(rows, VOCABULARY, CPU)
    generated = [list(row.generated_token_ids) for row in rows]
    for step in range(3):
        token_ids = sample(logits_of(len(rows), seed + step), batch).token_ids
        batch.update(token_ids)
        for ids, token in zip(generated, token_ids.tolist(), strict=True):
            ids.append(token)
    resumed = [dataclasses.replace(row, generated_token_ids=ids) for row, ids in zip(rows, generated, strict=True)]
    logits = logits_of(len(rows), seed + 3)
    again, onward = sample(logits, SamplingBatch.build(resumed, VOCABULARY, CPU)), sample(logits, batch)
    assert [one(again, i) for i in range(len(rows))] == [one(onward, i) for i in range(len(rows))]


class CountPenalties(LogitsProcessor):
    """OpenAI's penalties, by their definition."""

    def __init__(self, p: SamplingParams, prompt: int) -> None:
        self.p, self.prompt = p, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        counts = torch.bincount(input_ids[0, self.prompt :], minlength=scores.shape[-1])
        return scores - counts * self.p.frequency_penalty - (counts > 0) * self.p.presence_penalty


class Biases(LogitsProcessor):
    def __init__(self, p: SamplingParams) -> None:
        self.p = p

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        bias = torch.tensor([(self.p.logit_bias or {}).get(t, 0.0) for t in range(scores.shape[-1])])
        return scores + bias


def transformers_chain(row: SamplingRow) -> LogitsProcessorList:
    p, prompt, chain = row.params, len(row.prompt_token_ids), LogitsProcessorList()
    ends = ([] if p.ignore_eos else list(row.eos_token_ids)) + list(p.stop_token_ids)
    chain += [RepetitionPenaltyLogitsProcessor(p.repetition_penalty), CountPenalties(p, prompt), Biases(p)]
    chain += [MinNewTokensLengthLogitsProcessor(prompt, p.min_new_tokens, ends)] if ends else []
    if p.samples:
        chain += [TemperatureLogitsWarper(p.temperature)]
        chain += [TopKLogitsWarper(p.top_k)] if p.top_k else []
        chain += [TopPLogitsWarper(p.top_p)] if p.top_p < 1 else []
        chain += [TypicalLogitsWarper(p.typical_p)] if p.typical_p < 1 else []
    return chain


@settings(deadline=None, max_examples=150)
@given(rows_of_any_kind, st.integers(0, 1000))
def test_the_whole_chain_equals_transformers_processors_in_order(rows: list[SamplingRow], seed: int) -> None:
    rows = [
        dataclasses.replace(
            row,
            params=dataclasses.replace(
                row.params,
                watermark=False,
                top_logprobs=VOCABULARY,
                # Extremes, where the warper itself overflows, have tests of their own.
                temperature=row.params.temperature if 0.1 < row.params.temperature < 10 else 0.9,
            ),
        )
        for row in rows
    ]
    logits = logits_of(len(rows), seed)
    sampled = sample(logits, SamplingBatch.build(rows, VOCABULARY, CPU))
    for i, row in enumerate(rows):
        ids = torch.tensor([[*row.prompt_token_ids, *row.generated_token_ids]])
        expected = transformers_chain(row)(ids, logits[i : i + 1].clone()).log_softmax(-1)[0]
        for nearly in (1 - 2e-6, 1 + 2e-6):
            # A mass that ends at a token but for rounding decides nothing about the filter.
            asked = {name: getattr(row.params, name) for name in ("top_p", "typical_p")}
            p = dataclasses.replace(row.params, **{name: min(1.0, mass * nearly) for name, mass in asked.items() if mass < 1})
            beside = transformers_chain(dataclasses.replace(row, params=p))(ids, logits[i : i + 1].clone())[0]
            assume(torch.equal(beside.isneginf(), expected.isneginf()))
        token, logprob, top = one(sampled, i)
        ours = torch.tensor([x for _, x in sorted(top)])
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
        assert logprob == ours[token].item()
        if row.params.greedy:
            assert token == int(expected.argmax())
        else:
            assert expected[token] > -math.inf


def test_plain_greedy_is_the_best_logit_and_the_models_own_log_probability() -> None:
    logits = logits_of(5, 1)
    sampled = sample(logits, batch_of(*[{}] * 5))
    assert torch.equal(sampled.token_ids, logits.argmax(-1))
    assert torch.equal(sampled.logprobs, logits.log_softmax(-1).amax(-1))
    assert (sampled.token_ids.dtype, sampled.logprobs.dtype) == (torch.int64, torch.float32)
    assert sampled.top_ids is None
    assert sampled.tops() == [()] * 5


@quick
@given(rows_of_any_kind, st.integers(0, 2**32), st.data())
def test_the_models_own_log_probabilities_are_told_where_asked_and_choose_nothing(
    rows: list[SamplingRow], seed: int, data: st.DataObject
) -> None:
    asked = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    logits = logits_of(len(rows), seed)
    plain = sample(logits, SamplingBatch.build(rows, VOCABULARY, CPU))
    told = [dataclasses.replace(row, model_logprobs=wanted) for row, wanted in zip(rows, asked, strict=True)]
    sampled = sample(logits, SamplingBatch.build(told, VOCABULARY, CPU))
    assert torch.equal(sampled.token_ids, plain.token_ids)
    model = logits.log_softmax(-1)
    for i, wanted in enumerate(asked):
        token, logprob, top = one(sampled, i)
        if not wanted:
            assert (token, logprob, top) == one(plain, i)
            continue
        assert logprob == pytest.approx(model[i, token].item(), abs=1e-6)
        best = sorted(range(VOCABULARY), key=lambda each: (-model[i, each].item(), each))[: len(top)]
        assert [each for each, _ in top] == best
        assert [value for _, value in top] == pytest.approx(model[i, best].tolist(), abs=1e-6)


def test_the_models_own_log_probabilities_cost_nothing_where_they_are_those_of_the_choice() -> None:
    def batch(rows: int, **wanted: Any) -> SamplingBatch:
        row = SamplingRow(SamplingParams(**wanted), 0, [1], model_logprobs=True)
        return SamplingBatch.build([row] * rows, VOCABULARY, CPU)

    same: dict[str, Any]
    for same in ({}, {"do_sample": True}, {"temperature": 0.0, "top_k": 4}):
        assert batch(1, **same).plan().signature == batch_of(same).plan().signature is not None
    other: dict[str, Any]
    for other in ({"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}, {"typical_p": 0.5}):
        assert batch_of(other).plan().signature is not None
        assert batch(1, **other).plan().signature is None
    rows = logits_of(2, 7)
    rows[0] = math.nan
    none = sample(rows, batch(2, temperature=0.5))
    assert (none.token_ids[0].item(), none.logprobs[0].item()) == (0, -math.inf)
    assert math.isfinite(none.logprobs[1].item())


def test_greedy_work_is_the_bare_minimum() -> None:
    work = batch_of({}, {"seed": 3, "top_logprobs": 2}, {"temperature": 0.0, "top_k": 4, "top_p": 0.5}).plan()
    assert (work.edits, work.needs, work.table, work.lasts) == ((), GREEDY, None, None)
    logits = logits_of(3, 2)
    assert work.edited(logits) is logits


def test_a_filter_runs_only_where_some_row_asks() -> None:
    work = batch_of({}, {"top_p": 0.5}, {"top_k": 3}).plan()
    assert work.needs == Signature(samples=True, temperature=False, largest_k=4, top_p=True, typical_p=False)
    assert work.table is not None
    assert work.table.top_k.squeeze(1).tolist() == [0, 0, 3]
    assert (work.table.tails >= 0).squeeze(1).tolist() == [False, True, False]
    assert not batch_of({"top_k": VOCABULARY}, {"top_k": 10**30}).plan().needs.filters


def test_temperature_zero_is_greedy_even_with_do_sample() -> None:
    logits = logits_of(1, 3)
    sampled = sample(logits, batch_of({"temperature": 0.0, "do_sample": True, "top_k": 2}))
    assert sampled.token_ids.item() == logits.argmax().item()
    assert sampled.logprobs.item() == logits.log_softmax(-1).max().item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_is_worked_on_in_float32_and_left_alone(dtype: torch.dtype) -> None:
    logits = logits_of(2, 4).to(dtype)
    before = logits.clone()
    wanted = {"repetition_penalty": 2.0, "logit_bias": {1: 5.0}, "min_new_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_logprobs": 3}
    ours, widened = sample(logits, batch_of({}, wanted, eos=EOS)), sample(logits.float(), batch_of({}, wanted, eos=EOS))
    assert torch.equal(logits, before)
    assert [one(ours, i) for i in range(2)] == [one(widened, i) for i in range(2)]


SAMPLERS = [{}, {"do_sample": True}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.9}, {"typical_p": 0.9}, {"repetition_penalty": 2.0}]


@pytest.mark.parametrize("wanted", SAMPLERS, ids=str)
def test_nan_counts_as_minus_infinity_and_never_spreads(wanted: dict[str, Any]) -> None:
    logits = logits_of(3, 5)
    logits[0, 1::2] = math.nan
    logits[1] = math.nan
    clean = logits.clone()
    clean[0, 1::2] = -math.inf
    sampled = sample(logits, batch_of(*[wanted | {"top_logprobs": 4}] * 3))
    expected = sample(clean, batch_of(*[wanted | {"top_logprobs": 4}] * 3))
    assert [one(sampled, i) for i in (0, 2)] == [one(expected, i) for i in (0, 2)]
    assert sampled.token_ids[0] % 2 == 0
    assert one(sampled, 1) == (0, -math.inf, tuple((i, -math.inf) for i in range(4)))


@pytest.mark.parametrize("wanted", SAMPLERS, ids=str)
def test_infinite_logits_are_the_largest_number(wanted: dict[str, Any]) -> None:
    logits = torch.full((1, VOCABULARY), -math.inf)
    logits[0, 7] = math.inf
    assert one(sample(logits, batch_of(wanted)), 0)[:2] == (7, 0.0)


EXTREMES = [
    {"temperature": 5e-324},
    {"temperature": 1e-8},
    {"temperature": 1e30},
    {"temperature": 1.7e308},
    {"repetition_penalty": 5e-324},
    {"repetition_penalty": 1.7e308},
    {"frequency_penalty": 1.7e308, "presence_penalty": -1.7e308},
    {"frequency_penalty": -1.7e308},
    {"logit_bias": {3: 1.7e308, 4: -1.7e308}},
    {"top_p": 5e-324},
    {"typical_p": 5e-324},
    {"top_k": 10**300},
]


@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
@pytest.mark.parametrize("base", [{}, {"do_sample": True}, {"temperature": 0.01, "top_k": 5, "top_p": 0.9, "typical_p": 0.9}], ids=str)
def test_extreme_parameters_still_give_a_token_with_a_finite_log_probability(extreme: dict[str, Any], base: dict[str, Any]) -> None:
    row = SamplingRow(SamplingParams(**(base | extreme)), 1, [1, 2], [3, 3, 4])
    batch = SamplingBatch.build([row], VOCABULARY, CPU)
    for step in range(3):
        logits = logits_of(1, step)
        logits[0, 5:9] = -math.inf
        sampled = sample(logits, batch)
        assert math.isfinite(sampled.logprobs.item())
        assert not 5 <= sampled.token_ids.item() < 9
        batch.update(sampled.token_ids)


def test_min_new_tokens_holds_the_end_back_exactly_so_long() -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[:, EOS[0]] = 10
    batch = batch_of({"min_new_tokens": 3}, {}, eos=EOS)
    ended = []
    for _ in range(5):
        token_ids = sample(logits, batch).token_ids
        ended.append((token_ids == EOS[0]).tolist())
        batch.update(token_ids)
    assert ended == [[False, True]] * 3 + [[True, True]] * 2


def test_the_draw_depends_on_seed_and_place_alone_far_beyond_one_block() -> None:
    seed, logits = 2**63 + 5, torch.zeros(1, 1000)
    batch = SamplingBatch.build([SamplingRow(SamplingParams(do_sample=True), seed, [1])], 1000, CPU)
    other = SamplingBatch.build([SamplingRow(SamplingParams(do_sample=True), seed, [1] * 9, [4, 4, 4])], 1000, CPU)
    drawn, later = [], []
    for _ in range(2 * DRAWS + 5):
        drawn.append(int(sample(logits, batch).token_ids.item()))
        later.append(int(sample(logits, other).token_ids.item()))
        batch.update(torch.tensor([0]))
        other.update(torch.tensor([0]))
    places = torch.arange(len(drawn))
    expected = (uniform(torch.tensor([signed(seed)]), places) * 1000).long().tolist()
    assert drawn == expected
    assert later[:-3] == expected[3:]
    assert len(set(drawn)) > 100


def test_sampling_the_same_step_twice_gives_the_same_token() -> None:
    batch, logits = batch_of({"do_sample": True}), logits_of(1, 2)
    assert sample(logits, batch).token_ids.item() == sample(logits, batch).token_ids.item()


def test_each_row_gets_as_many_likeliest_tokens_as_it_asked_for() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0]] * 3)
    tops = sample(logits, batch_of({"top_logprobs": 3}, {}, {"top_logprobs": 100}, vocabulary=4)).tops()
    assert [[token for token, _ in top] for top in tops] == [[1, 3, 2], [], [1, 3, 2, 0]]
    torch.testing.assert_close(torch.tensor([x for _, x in sorted(tops[2])]), logits[0].log_softmax(-1))


def test_what_is_reported_is_the_distribution_that_was_drawn_from() -> None:
    sampled = sample(torch.tensor([[0.0, 3.0, 2.0, 1.0]]), batch_of({"top_k": 2, "temperature": 0.5, "top_logprobs": 4}, vocabulary=4))
    token, logprob, top = one(sampled, 0)
    expected = torch.tensor([3.0, 2.0]).div(0.5).log_softmax(-1).tolist()
    assert [t for t, _ in top] == [1, 2, 0, 3]
    assert [x for _, x in top] == pytest.approx([*expected, -math.inf, -math.inf])
    assert logprob == dict(top)[token]


def test_an_empty_batch_is_no_special_case() -> None:
    batch = batch_of({"do_sample": True, "repetition_penalty": 2.0, "top_p": 0.5}).select([])
    sampled = sample(torch.zeros(0, VOCABULARY), batch)
    assert sampled.token_ids.shape == (0,)
    batch.update(sampled.token_ids)
    batch.extend(batch_of({"do_sample": True}))
    assert sample(torch.zeros(1, VOCABULARY), batch).token_ids.shape == (1,)


def test_misuse_is_told() -> None:
    batch = batch_of({}, {})
    with pytest.raises(ValueError, match="logits of shape"):
        sample(torch.zeros(1, VOCABULARY), batch)
    with pytest.raises(ValueError, match="only once"):
        batch.select([0, 0])
    for rows in ([2], [-1]):
        with pytest.raises(IndexError):
            batch.select(rows)
    with pytest.raises(ValueError, match="joined"):
        batch.extend(batch_of({}, vocabulary=7))
    with pytest.raises(ValueError, match="seed"):
        SamplingRow(SamplingParams(), -1, [1])
    with pytest.raises(UserError, match="logit_bias names token 24"):
        batch_of({"logit_bias": {VOCABULARY: 1.0}})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_between_changes_of_the_batch_the_gpu_is_never_waited_for() -> None:
    device, vocabulary = torch.device("cuda"), 1000
    wanted = [
        {},
        {"do_sample": True, "top_k": 20, "top_p": 0.9, "typical_p": 0.9, "temperature": 0.7, "top_logprobs": 3},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {3: 1.0}, "min_new_tokens": 5},
    ]
    rows = [SamplingRow(SamplingParams(**w), i, [1, 2], (), EOS) for i, w in enumerate(wanted)]  # type: ignore[arg-type]
    there, here = SamplingBatch.build(rows, vocabulary, device), SamplingBatch.build(rows, vocabulary, CPU)
    logits = [logits_of(len(rows), step, vocabulary) for step in range(4)]
    on_device = [x.to(device) for x in logits]
    there.plan()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampled = []
        for x in on_device:
            sampled.append(sample(x, there))
            there.update(sampled[-1].token_ids)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for x, ours in zip(logits, sampled, strict=True):
        expected = sample(x, here)
        here.update(expected.token_ids)
        assert torch.equal(ours.token_ids.cpu(), expected.token_ids)
        torch.testing.assert_close(ours.logprobs.cpu(), expected.logprobs)
