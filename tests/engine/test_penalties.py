"""Penalties, biases and bans: against transformers' processors and against the definitions."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor

from inferometer.engine.edits import CountPenalty, EndBan, LogitBias, RepetitionPenalty
from inferometer.engine.history import History
from inferometer.engine.sampling_row import SamplingRow
from inferometer.schedule.sampling import SamplingParams

VOCABULARY = 12
CPU = torch.device("cpu")
quick = settings(deadline=None, max_examples=50)

tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=8)
numbers = st.floats(-30, 30, width=32) | st.integers(-2, 2).map(float) | st.just(-math.inf)
score_row = st.lists(numbers, min_size=VOCABULARY, max_size=VOCABULARY)
penalty = st.floats(0.1, 5) | st.just(1.0)


def row(params: dict[str, Any], prompt: list[int], generated: list[int] | None = None, eos: tuple[int, ...] = ()) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), 0, prompt, generated or (), eos)


def history_of(rows: list[SamplingRow]) -> History:
    return History.build(rows, VOCABULARY, CPU)


@quick
@given(st.lists(st.tuples(score_row, tokens.filter(bool), tokens, penalty), min_size=1, max_size=4))
def test_repetition_penalty_equals_transformers_row_by_row(cases: list[tuple[list[float], list[int], list[int], float]]) -> None:
    rows = [row({"repetition_penalty": p}, prompt, generated) for _, prompt, generated, p in cases]
    scores = torch.tensor([case[0] for case in cases])
    seen = history_of(rows).seen
    ours = scores if seen is None else RepetitionPenalty.build(rows, seen).apply(scores.clone())
    for i, (_, prompt, generated, p) in enumerate(cases):
        theirs = RepetitionPenaltyLogitsProcessor(p)(torch.tensor([prompt + generated]), scores[i : i + 1].clone())
        assert torch.equal(ours[i : i + 1], theirs)


@quick
@given(st.lists(st.tuples(score_row, tokens, tokens, st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=4))
def test_count_penalties_follow_the_definition(cases: list[tuple[list[float], list[int], list[int], float, float]]) -> None:
    rows = [row({"frequency_penalty": f, "presence_penalty": p}, prompt, generated) for _, prompt, generated, f, p in cases]
    scores = torch.tensor([case[0] for case in cases])
    counts = history_of(rows).counts
    ours = scores if counts is None else CountPenalty.build(rows, counts).apply(scores.clone())
    for i, (logits, _, generated, frequency, presence) in enumerate(cases):
        count = Counter(generated)
        expected = torch.tensor([x - count[t] * frequency - (count[t] > 0) * presence for t, x in enumerate(logits)])
        torch.testing.assert_close(ours[i], expected, rtol=1e-5, atol=1e-5)
        untouched = [t for t in range(VOCABULARY) if not count[t]]
        assert torch.equal(ours[i, untouched], scores[i, untouched])


@quick
@given(st.lists(st.tuples(score_row, st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100))), min_size=1, max_size=4))
def test_logit_bias_is_added(cases: list[tuple[list[float], dict[int, float]]]) -> None:
    rows = [row({"logit_bias": bias}, []) for _, bias in cases]
    scores = torch.tensor([case[0] for case in cases])
    edit = LogitBias.build(rows, CPU)
    assert (edit is None) == (not any(bias for _, bias in cases))
    ours = scores.clone() if edit is None else edit.apply(scores.clone())
    expected = torch.tensor([[x + bias.get(t, 0.0) for t, x in enumerate(logits)] for logits, bias in cases])
    torch.testing.assert_close(ours, expected)


@quick
@given(score_row, st.integers(0, 6), st.integers(0, 8), st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3))
def test_min_new_tokens_equals_transformers(logits: list[float], minimum: int, done: int, eos: list[int]) -> None:
    scores = torch.tensor([logits])
    step = torch.zeros(1, dtype=torch.int64)
    # The first of the end tokens through the model, the others through the request: they count alike.
    rows = [row({"min_new_tokens": minimum, "stop_token_ids": eos[1:]}, [1, 2], [], (eos[0], VOCABULARY + 3))]
    edit = EndBan.build(rows, [0], VOCABULARY, step)
    step += done
    ours = scores if edit is None else edit.apply(scores.clone())
    theirs = MinNewTokensLengthLogitsProcessor(2, minimum, eos)(torch.ones(1, 2 + done, dtype=torch.int64), scores)
    assert torch.equal(ours, theirs)
    assert (0 if edit is None else edit.lasts) == minimum


def test_an_ignored_end_token_is_not_banned_but_a_stop_token_is() -> None:
    rows = [row({"min_new_tokens": 2, "ignore_eos": True, "stop_token_ids": [4]}, [1], eos=(3,))]
    edit = EndBan.build(rows, [0], VOCABULARY, torch.zeros(1, dtype=torch.int64))
    assert edit is not None
    assert edit.apply(torch.zeros(1, VOCABULARY))[0].tolist() == [-math.inf if t == 4 else 0.0 for t in range(VOCABULARY)]


WANTS = [{}, {"repetition_penalty": 2.0}, {"frequency_penalty": 1.0}, {"presence_penalty": -1.0}, {"watermark": True}]
wanted_rows = st.lists(
    st.tuples(st.sampled_from(WANTS), tokens.filter(bool), tokens).map(lambda parts: row(*parts)), min_size=1, max_size=5
)


def facts(history: History, rows: list[SamplingRow]) -> list[tuple[list[int] | None, list[int] | None, int | None]]:
    """What a history knows of each row, as far as the row needs it."""

    def of(memory: Tensor | None, i: int, needed: bool) -> Any:
        if not needed:
            return None
        assert memory is not None
        return memory[i].tolist()

    return [
        (
            of(history.seen, i, r.penalises_repetition),
            of(history.counts, i, r.penalises_counts),
            of(history.previous, i, r.params.watermark),
        )
        for i, r in enumerate(rows)
    ]


@quick
@given(wanted_rows, wanted_rows, st.data())
def test_a_history_survives_steps_departures_and_arrivals(first: list[SamplingRow], second: list[SamplingRow], data: st.DataObject) -> None:
    histories, generated = history_of(first), [list(r.generated_token_ids) for r in first]
    rows = list(first)

    def step() -> None:
        chosen = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=len(rows), max_size=len(rows)))
        histories.update(torch.tensor(chosen, dtype=torch.int64))
        for ids, token in zip(generated, chosen, strict=True):
            ids.append(token)

    step()
    order = data.draw(st.permutations(range(len(rows))))[: data.draw(st.integers(0, len(rows)))]
    rows, generated = [rows[i] for i in order], [generated[i] for i in order]
    histories = histories.select(torch.tensor(order, dtype=torch.int64), rows)
    step()
    histories = histories.extend(history_of(second), len(rows), len(second))
    rows, generated = rows + second, generated + [list(r.generated_token_ids) for r in second]
    step()
    fresh = [SamplingRow(r.params, 0, r.prompt_token_ids, ids) for r, ids in zip(rows, generated, strict=True)]
    assert facts(histories, rows) == facts(history_of(fresh), fresh)


def test_nothing_is_remembered_that_nobody_needs() -> None:
    rows = [row({"repetition_penalty": 2.0}, [1]), row({"top_k": 3}, [1])]
    history = history_of(rows)
    assert (history.counts, history.previous) == (None, None)
    assert history.select(torch.tensor([1]), rows[1:]).seen is None


def test_prompt_tokens_outside_the_vocabulary_are_ignored() -> None:
    seen = history_of([row({"repetition_penalty": 2.0}, [VOCABULARY, VOCABULARY + 7, 3])]).seen
    assert seen is not None
    assert seen[0].nonzero().flatten().tolist() == [3]
