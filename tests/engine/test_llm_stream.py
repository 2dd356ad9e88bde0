"""Iterators over one model: whoever asks drives it for all, and may go at any time."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_llama import mixed_params, some_prompts

from inferometer import LLM, SamplingParams
from inferometer.schedule.completion import StreamedToken


def test_streamed_tokens_are_the_generated_ones(llm: LLM) -> None:
    prompts, params = some_prompts(5), mixed_params(5)
    expected = llm.generate(prompts, params)
    tokens: dict[int, list[int]] = {}
    texts: dict[int, str] = {}
    for token in llm.stream(prompts, params):
        assert token.index == len(tokens.setdefault(token.prompt, []))
        tokens[token.prompt].append(token.token_id)
        texts[token.prompt] = texts.get(token.prompt, "") + token.text
        if token.completion is not None:
            assert token.completion == expected[token.prompt]
    assert texts == {i: completion.text for i, completion in enumerate(expected)}


def test_an_abandoned_stream_leaves_nothing_running(llm: LLM) -> None:
    stream = llm.stream(some_prompts(4), SamplingParams(max_new_tokens=30, ignore_eos=True))
    for _ in range(6):
        next(stream)
    stream.close()
    assert not llm.engine.has_work


def _ids(stream: Iterator[StreamedToken]) -> list[int]:
    return [token.token_id for token in stream]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_iterators_take_turns_in_any_order(llm: LLM, lookahead: int) -> None:
    """Whoever asks drives the engine for all: nobody's tokens are lost on the way."""
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    prompts = some_prompts(7)
    expected = [completion.token_ids for completion in llm.generate(prompts, params)]
    llm.engine.lookahead, before = lookahead, llm.engine.lookahead
    for seed in range(4):
        generator = random.Random(seed)
        streams = {i: llm.stream([prompt], params) for i, prompt in enumerate(prompts)}
        found: dict[int, list[int]] = {i: [] for i in streams}
        while streams:
            i = generator.choice(list(streams))
            token = next(streams[i], None)
            if token is None or (i == 3 and token.index == 4):
                streams.pop(i).close()
            else:
                found[i].append(token.token_id)
            llm.engine.scheduler.check_pages()
        assert found == {i: expected[i][: 4 if i == 3 else None] for i in found}
        assert not llm.engine.scheduler.has_work
        assert not llm._loop._inboxes
    llm.engine.lookahead = before


def test_a_stop_string_ends_an_iterator_that_another_has_driven_past_it(llm: LLM) -> None:
    prompt, free = [5, 6], SamplingParams(max_new_tokens=20, ignore_eos=True, do_sample=True, temperature=3.0, seed=1)
    text = llm.generate([prompt], free)[0].text
    stopped = replace(free, stop=(text[2:4],))
    expected = llm.generate([prompt], stopped)
    assert len(expected[0].token_ids) < 18
    late = llm.stream([prompt, [1]], stopped)
    next(late)
    llm.generate([[3]], SamplingParams(max_new_tokens=30, ignore_eos=True))
    completions = [token.completion for token in late if token.completion is not None and token.prompt == 0]
    assert completions == expected
    assert not llm._loop._inboxes


@pytest.mark.parametrize("ranks", [1, 2])
def test_threads_may_share_a_model(folder: Path, ranks: int) -> None:
    """Each gets what it gets alone, whoever takes the steps, and what one of them abandons is dropped."""
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    prompts = [some_prompts(count) for count in range(1, 7)]
    found: dict[int, list[list[int]]] = {}
    with LLM(folder, dtype="float32", device="cpu", weights="dummy", tensor_parallel=ranks) as own:

        def ask(place: int) -> None:
            for _ in range(5):
                left = own.stream(prompts[place], params)
                next(left)
                del left
                found[place] = [completion.token_ids for completion in own.generate(prompts[place], params)]

        threads = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert not own.engine.has_work
        own.engine.scheduler.check_pages()
        assert found == {i: [completion.token_ids for completion in own.generate(prompt, params)] for i, prompt in enumerate(prompts)}


def test_a_consumer_may_generate(llm: LLM) -> None:
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    outer, inner = (completion.token_ids for completion in llm.generate([[1, 2], [3]], params))
    found = []
    for token in llm.stream([[1, 2]], params):
        found.append(token.token_id)
        assert llm.generate([[3]], params)[0].token_ids == inner
    assert found == outer


@pytest.mark.parametrize("how", ["clear", "close", "abort"])
def test_what_is_dropped_under_an_iterator_ends_it(folder: Path, how: str) -> None:
    with LLM(folder, dtype="float32", device="cpu", weights="dummy") as own:
        params = SamplingParams(max_new_tokens=8, ignore_eos=True)
        expected = own.generate([[1, 2]], params)
        stream = own.stream([[1, 2]], params)
        next(stream)
        if how == "abort":
            own.engine.abort(own._reader.made - 1)
        elif how == "clear":
            own.engine.clear()
        else:
            own.close()
        with pytest.raises(RuntimeError, match="dropped while they ran"):
            next(stream)
        assert own.generate([[1, 2]], params) == expected  # a closed model starts anew


def test_an_iterator_that_outlives_its_engine_brings_none_back(folder: Path) -> None:
    own = LLM(folder, dtype="float32", device="cpu", weights="dummy")
    stream = own.stream([[1, 2]])
    next(stream)
    own.close()
    stream.close()
    assert own._engine is None


def test_an_iterator_may_be_collected_during_a_step(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector closes it wherever it likes, in the middle of a plan as well."""
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    expected = _ids(llm.stream([[1, 2]], params))
    abandoned, kept = llm.stream([[5], [6]], params), llm.stream([[1, 2]], params)
    next(abandoned)
    found = [next(kept).token_id]
    plan = type(llm.engine.scheduler.admission).plan

    def collect(admission: object, batch: Any) -> None:
        for _ in batch.decoding:
            abandoned.close()
        plan(admission, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(type(llm.engine.scheduler.admission), "plan", collect)
    assert found + _ids(kept) == expected
    assert not llm.engine.has_work
    llm.engine.scheduler.check_pages()
