"""The offline interface on a small dummy model: what a request gets, whatever its company."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inferometer import LLM, SamplingParams
from inferometer.engine.engine import Engine
from inferometer.errors import UserError
from inferometer.nn.batch import prompt_batch
from inferometer.schedule.completion import StreamedToken
from inferometer.schedule.request import Request
from inferometer.schedule.scheduler import RequestTooLargeError
from tiny_models import tiny_model

CONFIG = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "eos_token_id": 7,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, dtype="float32", device="cpu", weights="dummy", seed=3, gpu_memory=0.25)


def _prompts(count: int, longest: int = 40) -> list[list[int]]:
    generator = random.Random(count)
    return [[generator.randrange(300) for _ in range(generator.randint(1, longest))] for _ in range(count)]


def _mixed_params(count: int) -> list[SamplingParams]:
    kinds = [
        SamplingParams(max_new_tokens=20, ignore_eos=True),
        SamplingParams(max_new_tokens=9, do_sample=True, seed=5, ignore_eos=True),
        SamplingParams(max_new_tokens=31, top_k=20, seed=6, temperature=3.0, ignore_eos=True),
        SamplingParams(max_new_tokens=1, top_p=0.5, seed=7, ignore_eos=True),
        SamplingParams(max_new_tokens=17, repetition_penalty=1.7, ignore_eos=True, top_logprobs=3, prompt_logprobs=True),
    ]
    return [kinds[i % len(kinds)] for i in range(count)]


def test_a_request_gets_the_same_in_any_company(llm: LLM) -> None:
    prompts, params = _prompts(23), _mixed_params(23)
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
    prompts, params = _prompts(17), _mixed_params(17)
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


def test_the_engine_refuses_what_can_never_fit(llm: LLM) -> None:
    engine = Engine(llm.model, pages=2)
    with pytest.raises(RequestTooLargeError, match=r"need 3 pages of KV cache .* 2 are available"):
        engine.add(Request(0, (1,) * 31, SamplingParams(max_new_tokens=3), 0))
    assert not engine.has_work


def test_aborted_requests_leave_the_others_alone(llm: LLM) -> None:
    prompts = _prompts(6)
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


def test_streamed_tokens_are_the_generated_ones(llm: LLM) -> None:
    prompts, params = _prompts(5), _mixed_params(5)
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
    stream = llm.stream(_prompts(4), SamplingParams(max_new_tokens=30, ignore_eos=True))
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
    prompts = _prompts(7)
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


def test_the_engine_refuses_more_tokens_than_the_model_has_positions(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(RequestTooLargeError, match="96 tokens that a sequence"):
        llm.engine.add(Request(0, (1,) * 90, SamplingParams(max_new_tokens=8), 0))
    with LLM(tiny_model(tmp_path, "bloom"), dtype="float32", device="cpu", weights="dummy") as endless:
        assert len(endless.generate([[1] * 200], SamplingParams(max_new_tokens=3, ignore_eos=True))[0].token_ids) == 3
        with pytest.raises(RequestTooLargeError, match="1048576 tokens that a sequence"):
            endless.stream([[1], [2]], [SamplingParams(), SamplingParams(max_new_tokens=2**20 + 1)])
        assert not endless.engine.has_work


def test_damaged_weights_do_not_fill_the_hosts_memory(folder: Path) -> None:
    """Pages that were never written take none, and clearing them must not write to them."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with LLM(folder, dtype="float32", device="cpu", weights="dummy", gpu_memory=1.0) as broken:
        weight = broken.model.get_parameter("layers.1.feed_forward.down.weight")
        sound = weight.detach().clone()
        params = SamplingParams(max_new_tokens=4)
        expected = broken.generate([[1, 2, 3]], params)
        weight.data.fill_(float("nan"))
        before = resident()
        with pytest.raises(UserError, match="no token a finite score"):
            broken.generate([[1, 2]])
        assert resident() - before < 2**28
        weight.data.copy_(sound)
        assert broken.generate([[1, 2, 3]], params) == expected


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


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ([[]], SamplingParams(), "no tokens"),
        ("", SamplingParams(), "no tokens"),
        ([[300]], SamplingParams(), "outside the vocabulary"),
        ([[-1]], SamplingParams(), "outside the vocabulary"),
        ([1, 2, 3], SamplingParams(), "wrap a single prompt"),
        (torch.tensor([1, 2, 3]), SamplingParams(), "wrap a single prompt"),
        (None, SamplingParams(), "prompts are texts or lists of token ids"),
        ([[1.5, 2]], SamplingParams(), "whole numbers"),
        ([[1, None]], SamplingParams(), "whole numbers"),
        ([["1"]], SamplingParams(), "whole numbers"),
        ([[1]], None, "params must be SamplingParams"),
        ([[1]], {"max_new_tokens": 2}, "params must be SamplingParams"),
        ([[1]], ["greedy"], "params must be SamplingParams"),
        ([[1] * 90], SamplingParams(max_new_tokens=7), "96 positions"),
        ([[1], [2]], [SamplingParams()], "2 prompts but 1"),
        ([[1]], SamplingParams(logit_bias={300: 1.0}), "300"),
    ],
)
def test_impossible_requests_are_refused_before_anything_runs(llm: LLM, prompts: object, params: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        llm.stream(prompts, params)  # type: ignore[arg-type]
    assert not llm.engine.has_work


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


def test_a_bad_device_or_dtype_is_told_at_once(folder: Path) -> None:
    with pytest.raises(UserError, match="unknown"):
        LLM(folder, device="tpu", weights="dummy")
    with pytest.raises(UserError, match="unknown"):
        LLM(folder, dtype="float8", device="cpu", weights="dummy")
    with pytest.raises(UserError, match="memory"):
        _ = LLM(folder, device="cpu", weights="dummy", memory_fraction=0).engine


def test_a_model_larger_than_the_hosts_memory_is_refused_before_it_is_loaded() -> None:
    with pytest.raises(UserError, match=r"bloom-176b in float32 need 656\.6 GiB, .* GiB of this machine's memory are free"):
        LLM("bloom-176b", weights="dummy", device="cpu", dtype="float32")


def test_an_encoder_is_refused_as_such_however_long_the_request(tmp_path: Path) -> None:
    with LLM(tiny_model(tmp_path, "bert"), weights="dummy", device="cpu") as encoder, pytest.raises(UserError, match="is an encoder"):
        encoder.generate("hi", SamplingParams(max_new_tokens=1000))


def test_scores_that_are_no_numbers_are_an_error_and_no_text(folder: Path) -> None:
    with LLM(folder, dtype="float32", device="cpu", weights="dummy") as broken:
        with torch.no_grad():
            broken.model.get_parameter("layers.1.feed_forward.down.weight").fill_(float("nan"))
        with pytest.raises(UserError, match="no token a finite score"):
            broken.generate([[1, 2]])
        broken.engine.clear()
        assert not broken.engine.has_work


WRONG = (
    *({"gpu_memory": value} for value in (-1.0, 0, float("nan"), float("inf"), "1", True)),
    *({"memory_fraction": value} for value in (0, -0.5, 1.01, float("nan"), None, "x", True)),
    *({"seed": value} for value in (-1, 2**64, "x", True)),
)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_setting_out_of_range_is_told_before_anything_is_loaded(folder: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(wrong))} must be"):
        LLM(folder, weights="dummy", device="cpu", **wrong)
