"""The engine on a GPU: kernels over pages, graphs and reading late change nothing of what the CPU gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from inferometer import LLM, SamplingParams
from inferometer.engine.engine import Engine
from inferometer.engine.sweep_graphs import SweepGraphs
from inferometer.nn.transformer import Transformer
from inferometer.schedule.admission import admission
from inferometer.schedule.emission import Emission
from inferometer.schedule.request import Request
from tiny_models import CONFIGS, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DECODERS = [family for family in CONFIGS if family != "bert"]
KINDS = [
    SamplingParams(max_new_tokens=20, ignore_eos=True),
    SamplingParams(max_new_tokens=9, do_sample=True, seed=5, ignore_eos=True),
    SamplingParams(max_new_tokens=18, top_k=20, seed=6, temperature=3.0, ignore_eos=True),
    SamplingParams(max_new_tokens=1, top_p=0.5, seed=7, ignore_eos=True),
    SamplingParams(max_new_tokens=17, repetition_penalty=1.7, ignore_eos=True, top_logprobs=3, prompt_logprobs=True),
]


def requests(count: int, *, kinds: Sequence[SamplingParams] = KINDS, longest: int = 40) -> list[Request]:
    generator = random.Random(count)
    prompts = [tuple(generator.randrange(300) for _ in range(generator.randint(1, longest))) for _ in range(count)]
    return [Request(i, prompt, kinds[i % len(kinds)], i) for i, prompt in enumerate(prompts)]


def run(engine: Engine, asked: Sequence[Request]) -> dict[int, list[Emission]]:
    for request in asked:
        engine.add(request)
    found: dict[int, list[Emission]] = {request.id: [] for request in asked}
    while engine.has_work:
        for emission in engine.step():
            found[emission.request_id].append(emission)
        engine.scheduler.check_pages()
    assert engine.scheduler.pool.in_use == 0
    return found


@pytest.fixture(scope="module", params=DECODERS)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Transformer]:
    """The same float32 weights on the CPU and on the GPU."""
    folder = tiny_model(tmp_path_factory.mktemp("gpu"), request.param)
    here = LLM(folder, dtype="float32", device="cpu", weights="dummy", seed=4).model
    there = Transformer(here.spec, torch.device("cuda", 0), torch.float32)
    there.load_state_dict(here.state_dict())
    return here, there


@pytest.mark.parametrize("order", ["continuous", "zigzag", "diagonal"])
def test_the_gpu_gives_what_the_cpu_gives(models: tuple[Transformer, Transformer], order: str) -> None:
    asked = requests(23)
    expected = run(Engine(models[0], pages=200), asked)
    engine = Engine(models[1], pages=70, seats=12, sweep_tokens=64, admission=admission(order))
    for _ in range(2):  # the second time with graphs from the start, and pages of the first
        found = run(engine, asked)
        for request in asked:
            ours, theirs = found[request.id], expected[request.id]
            assert [e.token_id for e in ours] == [e.token_id for e in theirs]
            torch.testing.assert_close([e.logprob for e in ours], [e.logprob for e in theirs], atol=1e-3, rtol=0)
            if request.params.prompt_logprobs:
                torch.testing.assert_close(ours[0].prompt_logprobs[1:], theirs[0].prompt_logprobs[1:], atol=1e-3, rtol=0)
                assert [e.top[0][0] for e in ours] == [e.top[0][0] for e in theirs]
    assert engine.recorded > 0
    if order == "continuous":
        assert engine.scheduler.hit_pages > 0


def test_graphs_change_no_bit(models: tuple[Transformer, Transformer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the sweeps they are recorded from. Padded to other sizes, products may be rounded otherwise: those are as good as equal."""
    asked = requests(12, kinds=KINDS[:3])
    unpadded = run(Engine(models[1], pages=200, graphs=False, lookahead=0, prefix_caching=False), asked)
    engine = Engine(models[1], pages=200, prefix_caching=False)
    run(engine, asked)
    assert engine.recorded > 0
    replayed = run(engine, asked)
    monkeypatch.setattr(SweepGraphs, "_record", lambda graphs, staged, bucket: partial(graphs._sweep, staged, bucket))
    padded = Engine(models[1], pages=200, prefix_caching=False)
    run(padded, asked)
    assert run(padded, asked) == replayed
    for request in asked:
        ours, theirs = replayed[request.id], unpadded[request.id]
        assert [e.token_id for e in ours] == [e.token_id for e in theirs]
        torch.testing.assert_close([e.logprob for e in ours], [e.logprob for e in theirs], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kinds", [KINDS[:1], KINDS], ids=["greedy", "all"])
def test_prompts_in_a_pass_of_their_own_change_nothing(models: tuple[Transformer, Transformer], kinds: list[SamplingParams]) -> None:
    asked = requests(40, kinds=kinds)
    expected = run(Engine(models[0], pages=200), asked)
    engine = Engine(models[1], pages=200, seats=24, sweep_tokens=256, admission=admission("diagonal", 3))
    beside = engine._running._beside
    assert beside is not None
    beside._least = 8  # of models that are much too small for it
    for _ in range(3):  # kernel by kernel, recorded, replayed
        found = run(engine, asked)
        for request in asked:
            assert [e.token_id for e in found[request.id]] == [e.token_id for e in expected[request.id]]
    if len(kinds) == 1:
        assert beside.graphs.recorded > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_stay_near_themselves_without_a_cache(tmp_path: Path, dtype: str) -> None:
    folder = tiny_model(tmp_path, "llama", head_dim=64, max_position_embeddings=2048)
    prompts = [[(7 * i + j) % 300 for j in range(length)] for i, length in enumerate((5, 130, 700, 31))]
    with LLM(folder, dtype=dtype, device="cuda", weights="dummy", gpu_memory=4) as llm:
        assert llm.engine.pages > 1000
        completions = llm.generate(prompts, SamplingParams(max_new_tokens=24, ignore_eos=True))
        again = llm.generate(prompts, SamplingParams(max_new_tokens=24, ignore_eos=True, prompt_logprobs=True))
        assert torch.cuda.max_memory_allocated() <= 4 * 2**30
    with LLM(folder, dtype="float32", device="cpu", weights="dummy") as exact:
        exact.model.load_state_dict({name: t.float().cpu() for name, t in llm.model.state_dict().items()})
        for prompt, completion, other in zip(prompts, completions, again, strict=True):
            whole = exact.generate([prompt + completion.token_ids[:-1]], SamplingParams(max_new_tokens=1, prompt_logprobs=True))[0]
            assert whole.prompt_logprobs is not None
            assert other.prompt_logprobs is not None
            theirs = torch.tensor([*whole.prompt_logprobs[1:], *([] if completion.token_ids[-1] != whole.token_ids[0] else whole.logprobs)])
            ours = torch.tensor([*other.prompt_logprobs[1:], *completion.logprobs])[: len(theirs)]
            torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0)


def test_nothing_in_the_loop_waits_for_the_device(models: tuple[Transformer, Transformer]) -> None:
    engine = Engine(models[1], pages=200)
    asked = requests(8, kinds=KINDS[:3])
    run(engine, asked)
    for request in asked:
        engine.add(request)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        while engine.has_work:
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_comes_back(models: tuple[Transformer, Transformer]) -> None:
    engine = Engine(models[1], pages=500)
    run(engine, requests(9))
    engine.close()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    run(engine, requests(9))
    engine.close()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= held
