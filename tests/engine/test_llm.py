"""The offline interface on a small dummy model: what a request gets, whatever its company."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from small_llama import CONFIG, mixed_params, some_prompts

from inferometer import LLM, SamplingParams
from inferometer.engine.engine import Engine
from inferometer.errors import UserError
from inferometer.nn.batch import prompt_batch
from inferometer.schedule.request import Request


def test_a_request_gets_the_same_in_any_company(llm: LLM) -> None:
    prompts, params = some_prompts(23), mixed_params(23)
    together = llm.generate(prompts, params)
    shuffled = list(range(23))
    random.Random(1).shuffle(shuffled)
    other = llm.generate([prompts[i] for i in shuffled], [params[i] for i in shuffled])
    for place, i in enumerate(shuffled):
        alone = llm.generate([prompts[i]], params[i])[0]
        assert together[i].token_ids == alone.token_ids == other[place].token_ids
        torch.testing.assert_close(torch.tensor(together[i].logprobs), torch.tensor(alone.logprobs), atol=1e-4, rtol=0)
        assert len(together[i].token_ids) == params[i].max_new_tokens


def test_a_cache_for_few_sequences_serves_many(llm: LLM) -> None:
    prompts, params = some_prompts(17), mixed_params(17)
    expected = llm.generate(prompts, params)
    small = Engine(llm.model, pages=15, seats=5, sweep_tokens=50)
    for i, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
        small.add(Request(i, tuple(prompt), own, own.seed or 0))
    tokens: dict[int, list[int]] = {}
    most = 0
    while small.has_work:
        for emission in small.step():
            tokens.setdefault(emission.request_id, []).append(emission.token_id)
        most = max(most, small.scheduler.running)
    assert 1 < most <= 5
    assert [tokens[i] for i in range(17)] == [completion.token_ids for completion in expected]


def test_aborted_requests_leave_the_others_alone(llm: LLM) -> None:
    prompts = some_prompts(6)
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    expected = llm.generate(prompts, params)
    engine = Engine(llm.model, pages=64)
    for i, prompt in enumerate(prompts):
        engine.add(Request(i, tuple(prompt), params, 0))
    tokens: dict[int, list[int]] = {i: [] for i in range(6)}
    step = 0
    while engine.has_work:
        for emission in engine.step():
            tokens[emission.request_id].append(emission.token_id)
        step += 1
        if step == 3:
            engine.abort(0)
            engine.abort(4)
            engine.abort(99)
    assert len(tokens[0]) == len(tokens[4]) == 3
    for i in (1, 2, 3, 5):
        assert tokens[i] == expected[i].token_ids


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_the_prefix_cache_forgets_what_a_failed_sweep_did_not_write(folder: Path, monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    def fail(*_: object) -> None:
        raise error

    with LLM(folder, dtype="float32", device="cpu", weights="dummy") as own:
        params = SamplingParams(max_new_tokens=4, ignore_eos=True)
        other = own.stream([[9] * 5], params)
        next(other)
        with monkeypatch.context() as patch:
            patch.setattr(own.model, "sweep", fail)
            with pytest.raises(error):
                own.generate([[3] * 50], params)
        assert not own.engine.has_work
        hits = own.engine.scheduler.hit_tokens
        own.generate([[3] * 50], params)
        assert own.engine.scheduler.hit_tokens == hits
        with pytest.raises(RuntimeError, match="dropped"):
            list(other)


def test_end_tokens(llm: LLM) -> None:
    prompt = [5, 6, 7]
    free = llm.generate([prompt], SamplingParams(max_new_tokens=20, ignore_eos=True))[0].token_ids
    stop = next(token for token in free if free.index(token) > 2)
    stopped = llm.generate([prompt], SamplingParams(max_new_tokens=20, ignore_eos=True, stop_token_ids=(stop,)))[0]
    assert stopped.finish_reason == "stop_sequence"
    assert stopped.token_ids == free[: free.index(stop) + 1]
    later = SamplingParams(max_new_tokens=20, min_new_tokens=10, ignore_eos=True, stop_token_ids=(stop,))
    assert len(llm.generate([prompt], later)[0].token_ids) >= 10
    # Made certain by its bias: the end token wins over the length on the last permitted place.
    ended = llm.generate([prompt], SamplingParams(max_new_tokens=1, logit_bias={7: 100.0}))[0]
    assert (ended.token_ids, ended.finish_reason) == ([7], "eos_token")


def test_the_seed_of_the_llm_decides_unseeded_requests(folder: Path) -> None:
    def draw(seed: int) -> list[list[int]]:
        llm = LLM(folder, dtype="float32", device="cpu", weights="dummy", seed=3)
        llm.seed = seed
        params = SamplingParams(max_new_tokens=8, do_sample=True, ignore_eos=True)
        return [completion.token_ids for completion in llm.generate([[1, 2]] * 3, params)]

    first = draw(11)
    assert first == draw(11)
    assert first != draw(12)
    assert first[0] != first[1]


def test_truncate_keeps_the_end_of_the_prompt(llm: LLM) -> None:
    prompt = list(range(60))
    cut = llm.generate([prompt], SamplingParams(max_new_tokens=5, truncate=9))[0]
    assert cut.prompt_token_ids == prompt[-9:]


def test_the_whole_context_may_be_used(llm: LLM) -> None:
    assert len(llm.generate([[1] * 90], SamplingParams(max_new_tokens=6, ignore_eos=True))[0].token_ids) == 6


def test_nothing_to_do_is_done(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_a_folder_without_tokenizer_runs_on_ids(folder: Path) -> None:
    llm = LLM(folder, dtype="float32", device="cpu", weights="dummy", tokenizer=str(folder))
    assert llm.tokenizer is None
    assert llm.generate([[1, 2]], SamplingParams(max_new_tokens=3))[0].text == ""
    with pytest.raises(UserError, match="has no tokenizer"):
        llm.generate("text")
    with pytest.raises(UserError, match="has no tokenizer"):
        llm.generate([[1]], SamplingParams(stop=("x",)))


def test_a_mistral_window_bounds_the_context(tmp_path: Path) -> None:
    config = CONFIG | {"model_type": "mistral", "sliding_window": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    llm = LLM(tmp_path, dtype="float32", device="cpu", weights="dummy")
    assert len(llm.generate([[1] * 10], SamplingParams(max_new_tokens=6, ignore_eos=True))[0].token_ids) == 6
    with pytest.raises(UserError, match="sliding window"):
        llm.generate([[1] * 10], SamplingParams(max_new_tokens=7))


def test_residency_is_asked_for_every_layer_in_order(llm: LLM) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.calls: list[tuple[str, int]] = []

        def acquire(self, layer: int) -> None:
            self.calls.append(("acquire", layer))

        def release(self, layer: int) -> None:
            self.calls.append(("release", layer))

    recorder, before = Recorder(), llm.model.residency
    llm.model.residency = recorder
    try:
        llm.model.sweep(prompt_batch([[1, 2, 3]], llm.device))
    finally:
        llm.model.residency = before
    assert recorder.calls == [("acquire", 0), ("release", 0), ("acquire", 1), ("release", 1)]
