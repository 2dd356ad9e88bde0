"""Rows of a batch of the sampler: nobody notices who comes, goes or is beside him."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_rows import CPU, EOS, VOCABULARY, batch_of, logits_of, one, quick, rows_of_any_kind

from inferometer.engine.sampler import SamplingBatch, SamplingRow, sample
from inferometer.errors import UserError
from inferometer.schedule.sampling import SamplingParams


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
