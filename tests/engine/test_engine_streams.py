"""Random streams of requests through the engine: whatever the company, order, chunking, cache hits, preemption or admission, each
gets what it gets alone, every token once, and no page is lost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engine_streams
from engine_streams import BASES, KINDS, MODELS, NUDGES, VOCABULARY, Asked, Setting, alone, asked, close, expected_of, model, run, setting
from inferometer import SamplingParams
from inferometer.engine.engine import Engine
from inferometer.nn.batch import prompt_batch
from inferometer.schedule.request import Request


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_alone_is_what_the_model_gives_without_a_cache(name: str, length: int) -> None:
    request = Request(0, BASES[0][:length], SamplingParams(max_new_tokens=20, ignore_eos=True, prompt_logprobs=True), 0)
    emissions = alone(name, request)
    scored = [*(emissions[0].prompt_logprobs or ())[1:]]
    tokens = list(request.prompt_token_ids)
    for number, emission in enumerate(emissions):
        # The frequencies of "dynamic" would be those of a prompt as long as all of that.
        if number == 0 or name != "dynamic":
            with torch.inference_mode():
                logprobs = model(name)(prompt_batch([tokens], torch.device("cpu")), logits="all").log_softmax(-1)
            if number == 0:
                close(scored, logprobs[:-1].gather(1, torch.tensor(tokens[1:], dtype=torch.int64)[:, None])[:, 0].tolist())
            assert emission.token_id == int(logprobs[-1].argmax())
            close(emission.logprob, float(logprobs[-1].max()))
        tokens.append(emission.token_id)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=st.lists(asked(), min_size=1, max_size=9), how=setting())
def test_everybody_gets_what_they_get_alone(name: str, stream: list[Asked], how: Setting) -> None:
    run(name, stream, how)


def test_a_diagonal_group_whose_prompts_take_long_leaves_pages_for_those_before_it() -> None:
    """Pieces of prompts end with pages, so that a sweep does not always run all of its 16 tokens."""
    small = [Asked(0, 1, 0, 0, new, 0, arrives, None) for new, arrives in ((1, 0), (1, 0), (1, 0), (1, 0), (1, 1), (7, 0), (10, 1))]
    large = [Asked(0, 17, 1, 0, 16, 0, 0, None), Asked(0, 32, 0, 0, 6, 0, 1, None)]
    run("dynamic", small + large, Setting(16, 3, 3, 16, 0, "diagonal", 2, None))


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_under_pressure_with_equal_beginnings(kind: int, lookahead: int) -> None:
    """Nine sequences, pages for two that do not grow: preemption, recomputing and hits must really happen."""
    stream = [Asked(i % 2, 30, i % 3, kind, 18, i, i // 3, None) for i in range(9)]
    engine = run("llama", stream, Setting(4, 8, 6, 24, lookahead, "greedy", None, None))
    if KINDS[kind].ignore_eos:
        assert engine.scheduler.preemptions > 0
    if engine.scheduler.preemptions or not KINDS[kind].prompt_logprobs:
        assert engine.scheduler.hit_tokens > 0


@pytest.mark.parametrize("length", [1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 48])
@pytest.mark.parametrize("sweep_tokens", [4, 16, 17, 1000])
def test_prompts_around_pages_and_chunks(length: int, sweep_tokens: int) -> None:
    stream = [Asked(0, length, suffix, 4, 5, 0, 2 * suffix, None) for suffix in (0, 1, 0, 2)]
    run("llama", stream, Setting(16, 50, 4, sweep_tokens, 1, "continuous", None, None))


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_prompt_is_scored_once_though_it_is_computed_again(lookahead: int) -> None:
    """Preempted within its prompt and after it; dropped within it, with scores on their way."""
    stream = [Asked(i % 2, 48, i % 3, 4, 18, i, i // 2, aborted) for i, aborted in enumerate((None, None, None, 5, None, 7, 9, None))]
    engine = run("llama", stream, Setting(4, 10, 6, 16, lookahead, "greedy", None, None))
    assert engine.scheduler.preemptions > 0


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_prompt_dropped_half_way_leaves_no_scores(lookahead: int) -> None:
    engine = Engine(model("llama"), pages=30, page_size=4, sweep_tokens=16, lookahead=lookahead)
    engine.add(Request(0, BASES[0][:48], SamplingParams(prompt_logprobs=True), 0))
    for _ in range(2):
        engine.step()
    assert engine._scores
    engine.abort(0)
    assert not engine._scores
    assert engine.drain() == []  # with lookahead, scores that were still under way
    assert not engine._scores
    assert not engine.has_work


def test_a_second_round_is_served_from_the_cache() -> None:
    engine = Engine(model("llama"), pages=60, page_size=4)
    tokens = []
    for turn in range(2):
        engine.add(Request(turn, BASES[0][:41], SamplingParams(max_new_tokens=6, ignore_eos=True), 0))
        while engine.has_work:
            tokens += [(turn, emission.token_id) for emission in engine.step()]
    assert [token for turn, token in tokens if turn == 0] == [token for turn, token in tokens if turn == 1]
    assert engine.scheduler.hit_tokens == 40  # all full pages of the prompt but never its last token
    engine.clear()
    assert engine.scheduler.pool.available == 60


def test_the_cache_knows_that_keys_depend_on_the_prompts_length() -> None:
    stream = [Asked(0, length, 0, 0, 6, 0, 8 * i, None) for i, length in enumerate((40, 36, 40))]
    engine = run("dynamic", stream, Setting(4, 100, 4, 1000, 0, "continuous", None, None))
    assert engine.scheduler.hit_tokens == 36  # the third's, of the first


def test_a_draw_that_rounding_turns_is_expected_where_it_fell(monkeypatch: pytest.MonkeyPatch) -> None:
    """With roundings of a tenth, which turn draws often; any other token is not."""
    monkeypatch.setattr(engine_streams, "ROUNDING", 0.1)
    alone.cache_clear()
    try:
        request = Asked(0, 20, 0, 3, 12, 1, 0, None).request(0)
        turned, plain = list(alone("bloom", request, NUDGES - 1)), alone("bloom", request)
        tokens = [each.token_id for each in turned]
        assert tokens != [each.token_id for each in plain]
        assert [each.token_id for each in expected_of("bloom", request, turned)] == tokens
        assert expected_of("bloom", request, list(plain)) == plain
        assert expected_of("bloom", request, [turned[0]._replace(token_id=VOCABULARY), *turned[1:]]) == plain
    finally:
        alone.cache_clear()
