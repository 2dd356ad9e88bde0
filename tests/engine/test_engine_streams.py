"""Random streams of requests through the engine: whatever the company, order, chunking, cache hits, preemption or admission, each
gets what it gets alone, every token once, and no page is lost."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferometer import LLM, SamplingParams
from inferometer.engine.engine import Engine
from inferometer.nn.batch import prompt_batch
from inferometer.nn.transformer import Transformer
from inferometer.schedule.admission import admission
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.emission import Emission
from inferometer.schedule.request import Request

VOCABULARY = 48  # small, so that end and stop tokens are met
EOS = 7
CONFIG = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96,
}  # fmt: skip
# Frequencies that depend on the prompt's length: its keys do, too.
DYNAMIC = {**CONFIG, "max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 8.0}}
ALIBI = {"model_type": "bloom", "vocab_size": VOCABULARY, "hidden_size": 24, "n_layer": 2, "n_head": 3}
MODELS = {"llama": CONFIG, "dynamic": DYNAMIC, "bloom": ALIBI}

BASES = tuple(tuple((a * i * i + b * i + a) % VOCABULARY for i in range(60)) for a, b in ((1, 5), (3, 2)))
KINDS = (
    SamplingParams(ignore_eos=True),
    SamplingParams(),
    SamplingParams(do_sample=True, temperature=2.0, stop_token_ids=(3, 11)),
    SamplingParams(top_k=9, top_p=0.9, temperature=1.5),
    SamplingParams(repetition_penalty=1.4, frequency_penalty=0.3, ignore_eos=True, prompt_logprobs=True, top_logprobs=2),
    SamplingParams(prompt_logprobs=True, min_new_tokens=4, do_sample=True),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request without its id; `arrives`: before which step it is added; `aborted`: before which one it is dropped, None for never."""

    base: int
    prompt: int
    suffix: int
    kind: int
    new: int
    seed: int
    arrives: int
    aborted: int | None

    def request(self, number: int) -> Request:
        prompt = (*BASES[self.base][: self.prompt], *((self.suffix * 17,) if self.suffix else ()))
        prompt = tuple(token % VOCABULARY for token in prompt)
        kind = KINDS[self.kind]
        params = replace(kind, max_new_tokens=self.new, min_new_tokens=min(kind.min_new_tokens, self.new))
        return Request(number, prompt, params, self.seed, (EOS,))


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    near = draw(st.sampled_from((1, 4, 8, 12, 16, 32, 48)))  # lengths around pages and chunks
    return Asked(
        base=draw(st.integers(0, 1)),
        prompt=max(1, min(50, near + draw(st.integers(-1, 2)))),
        suffix=draw(st.integers(0, 2)),
        kind=draw(st.integers(0, len(KINDS) - 1)),
        new=draw(st.integers(1, 18)),
        seed=draw(st.integers(0, 3)),
        arrives=draw(st.integers(0, 12)),
        aborted=draw(st.none() | st.none() | st.integers(0, 25)),
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """An engine's. pages: beside those that the largest request needs."""

    page_size: int
    pages: int
    seats: int
    sweep_tokens: int
    lookahead: int
    order: str
    group_size: int | None
    num_groups: int | None

    def engine(self, model: Transformer, requests: list[Request]) -> Engine:
        largest = max(-(-(request.tokens - 1) // self.page_size) for request in requests)
        return Engine(
            model,
            pages=largest + self.pages,
            page_size=self.page_size,
            seats=self.seats,
            sweep_tokens=self.sweep_tokens,
            lookahead=self.lookahead,
            # "greedy": lets in whoever fits now, so that many are preempted soon after.
            admission=Continuous(horizon=0) if self.order == "greedy" else admission(self.order, self.group_size, self.num_groups),
        )


@st.composite
def setting(draw: st.DrawFn) -> Setting:
    order = draw(st.sampled_from(("continuous", "greedy", "zigzag", "diagonal", "row")))
    return Setting(
        page_size=draw(st.sampled_from((1, 4, 16))),
        pages=draw(st.sampled_from((0, 1, 3, 8, 100))),
        seats=draw(st.integers(1, 6)),
        sweep_tokens=draw(st.sampled_from((6, 8, 16, 17, 64, 1000))),
        lookahead=draw(st.integers(0, 1)),
        order=order,
        group_size=None if order in ("continuous", "greedy") else draw(st.integers(1, 3)),
        num_groups=draw(st.none() | st.integers(1, 3)) if order in ("zigzag", "diagonal") else None,
    )


@cache
def model(name: str) -> Transformer:
    folder = Path(_folder) / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODELS[name]))
    made = LLM(folder, dtype="float32", device="cpu", weights="dummy", seed=3).model
    with torch.no_grad():  # sharper than dummy weights are, so that a wrong key or position shows
        for parameter in made.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    return made


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> None:
    global _folder
    _folder = str(tmp_path_factory.mktemp("streams"))


_folder = ""


@cache
def alone(name: str, what: Request) -> tuple[Emission, ...]:
    engine = Engine(model(name), pages=20, prefix_caching=False, lookahead=0)
    engine.add(what)
    found: list[Emission] = []
    while engine.has_work:
        found += engine.step()
    return tuple(found)


def close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=1e-4, rtol=0)


def run(name: str, stream: list[Asked], how: Setting) -> Engine:
    """Runs the stream and checks everything; the engine, empty."""
    requests = [one.request(i) for i, one in enumerate(stream)]
    engine = how.engine(model(name), requests)
    found: dict[int, list[Emission]] = {request.id: [] for request in requests}
    dropped: set[int] = set()
    step = 0
    while engine.has_work or step <= max(one.arrives for one in stream):
        for request, one in zip(requests, stream, strict=True):
            if one.arrives == step:
                engine.add(request)
            if one.aborted == step:
                engine.abort(request.id)  # may be unknown yet, or over
                if one.arrives <= step and not (found[request.id] and found[request.id][-1].finish_reason):
                    dropped.add(request.id)
        for emission in engine.step():
            assert emission.request_id not in dropped
            found[emission.request_id].append(emission)
        engine.scheduler.check_pages()
        step += 1
        assert step < 3000, "somebody starves"
    assert engine.scheduler.pool.in_use == 0
    assert engine.scheduler.running == engine.scheduler.waiting == 0
    assert not engine._scores  # of prompts: what is kept until the first token is given out, once
    for request in requests:
        expected = alone(name, replace(request, id=0))
        got = found[request.id]
        if request.id in dropped:
            expected = expected[: len(got)]
        assert [e.token_id for e in got] == [e.token_id for e in expected]
        assert [e.finish_reason for e in got] == [e.finish_reason for e in expected]
        close([e.logprob for e in got], [e.logprob for e in expected])
        for ours, theirs in zip(got, expected, strict=True):
            assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
            assert (ours.prompt_logprobs is None) == (theirs.prompt_logprobs is None)
            if ours.prompt_logprobs is not None and theirs.prompt_logprobs is not None:
                assert ours.prompt_logprobs[0] is None
                close(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:])
    return engine


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
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
