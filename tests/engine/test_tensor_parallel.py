"""A model over several ranks says what it says on one: in any order, in any company, and until one of the ranks ends."""

from __future__ import annotations

import os
import pickle
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rank_functions
import torch
from processes import Watched, descendants

from inferometer import LLM, SamplingParams
from inferometer.bench.backends.native import NativeBackend
from inferometer.engine.invented import fill, invent
from inferometer.engine.parallel.leader import Leader, start
from inferometer.engine.parallel.ranks import RanksError
from inferometer.engine.quality import quality
from inferometer.errors import ModelError, UserError
from inferometer.schedule.admission import Admission, admission
from inferometer.schedule.request import Request
from tiny_models import tiny_model

HOW: dict[str, Any] = {"weights": "dummy", "dtype": "float32", "device": "cpu", "gpu_memory": 0.05, "seed": 4}


@pytest.fixture(scope="module")
def two() -> Iterator[Leader]:
    """Two ranks that the models of these tests share, and that find this folder's modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        leader = start(2)
    yield leader
    leader.close()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("shared"), "llama", max_position_embeddings=256, eos_token_id=299)


@pytest.fixture(scope="module")
def alone(llama: Path) -> LLM:
    return LLM(llama, **HOW)


@pytest.fixture(scope="module")
def shared(llama: Path, two: Leader) -> Iterator[LLM]:
    with LLM(llama, **HOW, tensor_parallel=two) as llm:
        yield llm


def prompts(count: int, longest: int = 60) -> list[list[int]]:
    """Some begin as others do."""
    dice = random.Random(count)
    beginning = [dice.randrange(299) for _ in range(40)]
    return [[*beginning[: dice.choice((0, 16, 33))], *(dice.randrange(299) for _ in range(dice.randint(1, longest)))] for _ in range(count)]


def params(count: int) -> list[SamplingParams]:
    kinds = (
        SamplingParams(max_new_tokens=12),
        SamplingParams(max_new_tokens=9, do_sample=True, seed=5),
        SamplingParams(max_new_tokens=14, temperature=1.8, top_k=30, top_p=0.9, seed=6, top_logprobs=3),
        SamplingParams(max_new_tokens=5, prompt_logprobs=True, repetition_penalty=1.4),
        SamplingParams(max_new_tokens=1, typical_p=0.7, seed=8),
    )
    return [kinds[i % len(kinds)] for i in range(count)]


def assert_alike(one: LLM, other: LLM, count: int = 14) -> None:
    """The same tokens, of log-probabilities that differ by rounding."""
    for ours, theirs in zip(one.generate(prompts(count), params(count)), other.generate(prompts(count), params(count)), strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.finish_reason == theirs.finish_reason
        torch.testing.assert_close(torch.tensor(ours.logprobs), torch.tensor(theirs.logprobs), atol=1e-4, rtol=0)


def test_tokens_are_those_of_one_rank(alone: LLM, shared: LLM) -> None:
    assert shared.ranks.size == shared.model.collective.size == 2
    assert shared.model.local.heads * 2 == shared.spec.heads
    assert_alike(alone, shared)
    hits = shared.engine.scheduler.hit_pages
    assert_alike(alone, shared)  # with what the prefix cache has by now
    assert shared.engine.scheduler.hit_pages > hits


@pytest.mark.parametrize("name", ["continuous", "zigzag", "diagonal", "row"])
def test_tokens_are_the_same_in_every_order(alone: LLM, shared: LLM, name: str) -> None:
    order: Admission = admission(name, None if name == "continuous" else 3)
    wanted = alone.generate(prompts(9), params(9))
    # Few seats, few pages and short sweeps: prompts run in pieces, and sequences give their pages back and come again.
    engine = shared.make_engine(pages=24, seats=4, sweep_tokens=24, admission=order, lookahead=1)
    found: dict[int, list[int]] = {row: [] for row in range(9)}
    for row, (prompt, own) in enumerate(zip(prompts(9), params(9), strict=True)):
        engine.add(Request(row, tuple(prompt), own, own.seed or 0, (299,)))
    while engine.has_work:
        for emission in engine.step():
            found[emission.request_id].append(emission.token_id)
    assert [found[row] for row in range(9)] == [completion.token_ids for completion in wanted]
    engine.scheduler.check_pages()


def test_streams_may_be_left_and_requests_dropped(alone: LLM, shared: LLM) -> None:
    many = SamplingParams(max_new_tokens=60, ignore_eos=True)
    left = shared.stream(prompts(3), many)
    kept = shared.stream([[5, 6, 7]], SamplingParams(max_new_tokens=20, ignore_eos=True))
    for _ in range(4):
        next(left)
    next(kept)
    left.close()
    assert [token.token_id for token in kept][-1:] == alone.generate([[5, 6, 7]], SamplingParams(max_new_tokens=20, ignore_eos=True))[
        0
    ].token_ids[-1:]
    shared.engine.clear()
    assert_alike(alone, shared, 5)


def test_an_engine_runs_on_invented_contexts_and_launches_a_sweep_again(shared: LLM) -> None:
    engine = shared.make_engine(pages=64, seats=2)
    requests = [Request(row, (row, *range(1, 120)), SamplingParams(max_new_tokens=6, ignore_eos=True), 0) for row in range(2)]
    engine.everywhere(fill, 64, 0)
    engine.everywhere(invent, requests)
    for request in requests:
        engine.add(request)
    tokens = [emission.token_id for _ in range(3) for emission in engine.step()]
    engine.relaunch()
    tokens += [emission.token_id for emission in engine.drain()]
    assert tokens
    assert engine.scheduler.hit_tokens == 2 * 112
    engine.close()


def test_a_refused_request_leaves_the_ranks_as_they_were(alone: LLM, shared: LLM) -> None:
    with pytest.raises(UserError, match="more than the 256 positions"):
        shared.generate([[1] * 200], SamplingParams(max_new_tokens=100))
    with pytest.raises(UserError, match="pages of KV cache"):
        shared.make_engine(pages=2).add(Request(0, (1,) * 100, SamplingParams(), 0))
    assert_alike(alone, shared, 3)


def test_weights_that_give_no_score_are_told_and_the_ranks_go_on(llama: Path, two: Leader, alone: LLM, shared: LLM) -> None:
    broken = LLM(llama, **HOW, tensor_parallel=two)
    broken.everywhere(rank_functions.damage)
    with pytest.raises(ModelError, match="no token a finite score"):
        broken.generate([[1, 2, 3]], SamplingParams(max_new_tokens=3))
    broken.close()
    assert_alike(alone, shared, 3)


def test_the_benchmarks_backend_runs_over_ranks(alone: LLM, llama: Path, two: Leader) -> None:
    backends = NativeBackend(alone), NativeBackend(LLM(llama, **HOW, tensor_parallel=two))
    rows = [prompt[:20] for prompt in prompts(40, 20) if len(prompt) >= 20][:3]
    found = []
    for backend in backends:
        backend.prepare(3, 30)
        continued = backend.continuation(rows, 6)
        params = SamplingParams(max_new_tokens=6, ignore_eos=True)
        backend.prepare(3, 66)
        backend.hold([row * 3 for row in rows], params, 5, filled=True)
        backend.again()
        backend.synchronise()
        backend.abandon()
        found.append((continued.tokens, backend.forward(rows, loss=True), backend.logits(rows, last_only=False)))
    assert found[0][0] == found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-5)
    torch.testing.assert_close(found[0][2], found[1][2], atol=1e-4, rtol=0)
    assert backends[1].usable
    backends[1].close()


def test_a_models_quality_over_ranks_is_its_quality(alone: LLM, shared: LLM) -> None:
    text = [token for prompt in prompts(4) for token in prompt]
    one, other = quality(alone, alone, text, 64), quality(alone, shared, text, 64)
    assert other.perplexity == pytest.approx(one.perplexity, rel=1e-5)
    assert other.kl_divergence == pytest.approx(0.0, abs=1e-6)
    assert other.top1_agreement == 1.0


def test_texts_are_embedded_over_ranks(tmp_path: Path, two: Leader) -> None:
    folder = tiny_model(tmp_path, "bert")
    rows = [[1, 2, 3], [4] * 20, [5]]
    with LLM(folder, **HOW, tensor_parallel=two) as llm:
        torch.testing.assert_close(torch.from_numpy(llm.encode(rows)), torch.from_numpy(LLM(folder, **HOW).encode(rows)))


def test_pages_are_the_fewest_of_all_ranks(shared: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shared.room(seats=4, sweep_tokens=64)
    for here in (own + 5, own - 5):  # of rank 0 alone
        monkeypatch.setattr("inferometer.engine.room_beside.page_budget", lambda *_, here=here, **__: here)
        assert shared.room(seats=4, sweep_tokens=64) == min(own, here)


def test_what_cannot_be_told_is_not_begun(alone: LLM, shared: LLM) -> None:
    with pytest.raises((AttributeError, pickle.PicklingError)):
        shared.everywhere(lambda llm: llm)
    assert_alike(alone, shared, 3)


def test_a_model_that_one_rank_cannot_load_is_told(tmp_path: Path, two: Leader, shared: LLM, alone: LLM) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        LLM("/nowhere/at/all", **HOW, tensor_parallel=two)
    with pytest.raises(UserError, match="--tensor-parallel 2 does not divide tiny-bloom"):
        LLM(tiny_model(tmp_path, "bloom"), **HOW, tensor_parallel=two)
    assert_alike(alone, shared, 3)


@pytest.mark.parametrize(
    ("count", "complaint"),
    [
        (0, "--tensor-parallel must be a whole number of at least 1, not 0"),
        (True, "--tensor-parallel must be a whole number of at least 1, not True"),
        (2.0, "--tensor-parallel must be a whole number of at least 1, not 2.0"),
        (3, "--tensor-parallel 3 does not divide tiny-llama (4 heads, 2 key-value heads, 48 feed-forward); use one of 1, 2, 4"),
    ],
)
def test_impossible_counts_are_refused_before_anything_is_started(llama: Path, count: Any, complaint: str) -> None:
    before = descendants(os.getpid())
    with pytest.raises(UserError) as refusal:
        LLM(llama, **HOW, tensor_parallel=count)
    assert str(refusal.value) == complaint
    assert descendants(os.getpid()) == before


def test_a_rank_that_is_killed_while_it_works_ends_the_model(llama: Path) -> None:
    before = set(descendants(os.getpid()))
    llm = LLM(llama, **HOW, tensor_parallel=2)
    watched = Watched(set(descendants(os.getpid())) - before)
    assert isinstance(llm.ranks, Leader)
    stream = llm.stream(prompts(4), SamplingParams(max_new_tokens=150, ignore_eos=True))
    next(stream)
    killing = threading.Timer(0.0, os.kill, (llm.ranks.processes[0], signal.SIGKILL))
    killing.start()
    with pytest.raises(RanksError, match=r"rank 1 \(process \d+\) has ended"):
        for _ in stream:
            pass
    assert watched.gone() == []
    with pytest.raises(RanksError):
        llm.generate([[1, 2]], SamplingParams(max_new_tokens=2))
    llm.close()
    killing.join()


@pytest.mark.slow
def test_a_rank_that_hangs_while_it_works_ends_the_model(llama: Path) -> None:
    before = set(descendants(os.getpid()))
    llm = LLM(llama, **HOW, tensor_parallel=2)
    watched = Watched(set(descendants(os.getpid())) - before)
    assert isinstance(llm.ranks, Leader)
    stream = llm.stream(prompts(4), SamplingParams(max_new_tokens=150, ignore_eos=True))
    next(stream)
    os.kill(llm.ranks.processes[0], signal.SIGSTOP)
    with pytest.raises(RanksError, match=r"rank 1 \(process \d+\) has stopped answering"):
        for _ in stream:
            pass
    assert watched.gone(0.5) == []
    llm.close()


@pytest.mark.slow
def test_four_ranks_beside_two_say_the_same(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama")  # of two key-value heads
    with LLM(folder, **HOW) as one, LLM(folder, **HOW, tensor_parallel=2) as two, LLM(folder, **HOW, tensor_parallel=4) as four:
        short = [prompt[:30] for prompt in prompts(8)]
        texts = [[c.token_ids for c in llm.generate(short, params(8))] for llm in (one, two, four)]
        assert texts[0] == texts[1] == texts[2]
