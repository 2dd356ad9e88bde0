"""What the sampler chooses and reports, and what it leaves undone where nobody asks."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_rows import CPU, EOS, VOCABULARY, batch_of, logits_of, one, quick, rows_of_any_kind

from inferometer.engine.random import signed, uniform
from inferometer.engine.sampler import SamplingBatch, SamplingRow, sample
from inferometer.engine.sampling_plan import DRAWS, GREEDY, Signature
from inferometer.schedule.sampling import SamplingParams


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


@quick
@given(rows_of_any_kind)
def test_what_is_plain_needs_no_sampler(rows: list[SamplingRow]) -> None:
    """Whose sweeps may begin before the sampler knows of them."""
    plain = [dataclasses.replace(row, model_logprobs=True) for row in rows if row.params.plain]
    if plain:
        assert SamplingBatch.build(plain, VOCABULARY, CPU).plan().signature == GREEDY
    for row in rows:
        if row.params.greedy and not row.params.plain and row.end_token_ids:
            needs = SamplingBatch.build([row], VOCABULARY, CPU).plan().signature != GREEDY
            assert needs or row.params.min_new_tokens <= len(row.generated_token_ids)


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
