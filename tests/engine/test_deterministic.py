"""A deterministic engine: whatever the company, the chunks, the cache or the graphs, everybody gets the same bits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferometer import LLM, SamplingParams
from inferometer.engine import device as devices
from inferometer.engine.device import resolve_numerics, supports
from inferometer.engine.engine import Engine
from inferometer.errors import UserError
from inferometer.nn.batch import prompt_batch
from inferometer.nn.numerics import Numerics
from inferometer.nn.transformer import Transformer
from inferometer.schedule.admission import admission
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.emission import Emission
from inferometer.schedule.request import Request
from tiny_models import CONFIGS, tiny_model

FAMILIES = [family for family in CONFIGS if family != "bert"]
KINDS = (
    SamplingParams(max_new_tokens=12, ignore_eos=True, prompt_logprobs=True),
    SamplingParams(max_new_tokens=12, ignore_eos=True),
    SamplingParams(max_new_tokens=9, do_sample=True, temperature=1.5, ignore_eos=True),
    SamplingParams(max_new_tokens=10, top_k=9, ignore_eos=True, top_logprobs=2),
)
BASES = tuple(tuple((a * i * i + b * i + a) % 300 for i in range(60)) for a, b in ((1, 5), (3, 2)))
NO_SIXTEEN_BITS = pytest.mark.skipif(not supports(torch.device("cpu"), torch.bfloat16), reason="this processor multiplies no bfloat16")
_folder = Path()


@pytest.fixture(scope="module", autouse=True)
def _models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global _folder
    _folder = tmp_path_factory.mktemp("deterministic")
    yield
    model.cache_clear()
    alone.cache_clear()


@cache
def model(family: str, dtype: str = "float32", device: str = "cpu") -> Transformer:
    path = tiny_model(_folder, family)
    made = LLM(path, dtype=dtype, device=device, weights="dummy", seed=3, deterministic=True).model
    for parameter in made.parameters():
        if parameter.ndim == 2 and parameter.device.type != "meta":  # sharper than dummy weights are, so that more bits show
            parameter.mul_(8)
    return made


def run(engine: Engine, requests: list[Request]) -> dict[int, list[Emission]]:
    for request in requests:
        engine.add(request)
    found: dict[int, list[Emission]] = {request.id: [] for request in requests}
    while engine.has_work:
        for emission in engine.step():
            found[emission.request_id].append(emission._replace(request_id=0))
        engine.scheduler.check_pages()
    return found


@cache
def alone(family: str, dtype: str, what: Request) -> tuple[Emission, ...]:
    return tuple(run(Engine(model(family, dtype), pages=20, prefix_caching=False), [what])[0])


@dataclass(frozen=True, slots=True)
class Setting:
    page_size: int
    pages: int
    seats: int
    sweep_tokens: int
    prefix_caching: bool
    lookahead: int
    order: str

    def engine(self, family: str, dtype: str, requests: list[Request]) -> Engine:
        largest = max(-(-(request.tokens - 1) // self.page_size) for request in requests)
        return Engine(
            model(family, dtype),
            pages=largest + self.pages,
            page_size=self.page_size,
            seats=self.seats,
            sweep_tokens=self.sweep_tokens,
            prefix_caching=self.prefix_caching,
            lookahead=self.lookahead,
            # "greedy": lets in whoever fits now, so that many are preempted soon after.
            admission=Continuous(horizon=0) if self.order == "greedy" else admission(self.order),
        )


SETTINGS = st.builds(
    Setting,
    page_size=st.sampled_from((1, 4, 16)),
    pages=st.sampled_from((0, 1, 3, 100)),
    seats=st.integers(1, 40),
    sweep_tokens=st.sampled_from((6, 16, 17, 64, 1000)),
    prefix_caching=st.booleans(),
    lookahead=st.integers(0, 1),
    order=st.sampled_from(("continuous", "greedy", "diagonal", "zigzag")),
)
REQUESTS = st.lists(
    st.builds(
        lambda base, length, last, kind, seed: Request(0, (*BASES[base][:length], last), KINDS[kind], seed),
        base=st.integers(0, 1),
        length=st.integers(0, 45),
        last=st.sampled_from((5, 17)),
        kind=st.integers(0, len(KINDS) - 1),
        seed=st.integers(0, 2),
    ),
    min_size=1,
    max_size=24,
)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, "float32") for family in FAMILIES),
        # In 16 bits products are others, and the same for every family.
        *(pytest.param(family, "bfloat16", marks=NO_SIXTEEN_BITS) for family in ("llama", "bloom")),
        *(
            pytest.param(family, "bfloat16", marks=[NO_SIXTEEN_BITS, pytest.mark.slow])
            for family in FAMILIES
            if family not in ("llama", "bloom")
        ),
    ],
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests=REQUESTS, how=SETTINGS)
def test_everybody_gets_the_bits_they_get_alone(family: str, dtype: str, requests: list[Request], how: Setting) -> None:
    numbered = [replace(request, id=i) for i, request in enumerate(requests)]
    found = run(how.engine(family, dtype, numbered), numbered)
    for request, numbered_request in zip(requests, numbered, strict=True):
        assert tuple(found[numbered_request.id]) == alone(family, dtype, request)


def test_under_pressure_sequences_are_preempted_found_again_and_cut_up() -> None:
    """What the test above means to meet really happens, and changes no bit."""
    requests = [Request(i, (*BASES[i % 2][:30], i % 3), KINDS[i % 2], 0) for i in range(9)]
    engine = Setting(4, 12, 6, 17, True, 0, "greedy").engine("llama", "float32", requests)
    found = run(engine, requests)
    assert engine.scheduler.preemptions > 0
    assert engine.scheduler.hit_pages > 0
    for request in requests:
        assert tuple(found[request.id]) == alone("llama", "float32", replace(request, id=0))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_alone_and_at_a_random_place_among_127_others(family: str, tmp_path: Path) -> None:
    place = random.Random(family).randrange(128)
    # Of prompts of every length up to 40 about half come to a new page of 16 within eight tokens.
    check_among_127(tmp_path, family, "cpu", "float32", [place], new=8)


def check_among_127(
    folder: Path, family: str, device: str, dtype: str, places: list[int], longest: int = 40, new: int = 20, **config: object
) -> None:
    draw = random.Random(family)
    prompts = [[draw.randrange(300) for _ in range(draw.randint(1, longest))] for _ in range(128)]
    params = SamplingParams(max_new_tokens=new, ignore_eos=True, prompt_logprobs=True)
    path = tiny_model(folder, family, **config)
    with LLM(path, dtype=dtype, device=device, weights="dummy", deterministic=True, gpu_memory=4) as llm:
        together = llm.generate(prompts, params)
        again = llm.generate(prompts, params)  # on a GPU: as graphs
        for place in places:
            llm.engine.clear()
            own = llm.generate([prompts[place]], params)[0]
            for other in (together[place], again[place]):
                assert other.token_ids == own.token_ids
                assert other.logprobs == own.logprobs
                assert other.prompt_logprobs == own.prompt_logprobs


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_gives_the_bits_of_a_forward_without_a_cache(family: str) -> None:
    request = Request(0, BASES[0][:40], replace(KINDS[0], max_new_tokens=1), 0)
    (emission,) = alone(family, "float32", request)
    with torch.inference_mode():
        logprobs = model(family)(prompt_batch([request.prompt_token_ids, BASES[1][:7]], torch.device("cpu")), logits="all").log_softmax(-1)
    wanted = logprobs[:39].gather(1, torch.tensor(request.prompt_token_ids[1:])[:, None])[:, 0].tolist()
    assert emission.prompt_logprobs == (None, *wanted)
    assert emission.logprob == float(logprobs[39].max())


def test_it_is_the_same_model(tmp_path: Path) -> None:
    path = tiny_model(tmp_path, "llama")
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    found = []
    for deterministic in (False, True):
        with LLM(path, dtype="float32", device="cpu", weights="dummy", deterministic=deterministic) as llm:
            found.append(llm.generate([list(BASES[0][:20])], params)[0])
    assert found[0].token_ids == found[1].token_ids
    torch.testing.assert_close(found[0].logprobs, found[1].logprobs, atol=1e-4, rtol=0)


def test_texts_are_encoded_to_the_same_bits(tmp_path: Path) -> None:
    texts = [list(BASES[0][:length]) for length in (5, 30, 5, 17)]
    with LLM(tiny_model(tmp_path, "bert"), dtype="float32", device="cpu", weights="dummy", deterministic=True) as llm:
        together = llm.encode(texts)
        for text, vector in zip(texts, together, strict=True):
            assert (llm.encode([text])[0] == vector).all()


def test_a_model_that_was_not_packed_does_not_run(tmp_path: Path) -> None:
    spec = model("llama").spec
    bare = Transformer(spec, torch.device("cpu"), torch.float32, Numerics.INVARIANT)
    with pytest.raises(RuntimeError, match="pack"):
        bare(prompt_batch([[1, 2]], torch.device("cpu")))


def test_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="deterministic must be True or False"):
        LLM(tiny_model(tmp_path, "llama"), weights="dummy", deterministic="yes")  # type: ignore[arg-type]
    monkeypatch.setattr(devices, "usable", lambda device: False)
    with pytest.raises(UserError, match="--deterministic on a GPU needs Triton"):
        resolve_numerics(torch.device("cuda", 0), deterministic=True)
    assert resolve_numerics(torch.device("cuda", 0), deterministic=False) is Numerics.FASTEST
    assert resolve_numerics(torch.device("cpu"), deterministic=True) is Numerics.INVARIANT


GPU_MODELS = {
    "opt": {"hidden_size": 256, "ffn_dim": 1024, "max_position_embeddings": 2048, "word_embed_proj_dim": 256, "do_layer_norm_before": True},
    # Grouped heads, and products whose sums are cut into parts.
    "llama": {
        "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    },
    "bloom": {"hidden_size": 240, "n_head": 3},  # ALiBi, head size 80
    "gpt2": {"n_embd": 128, "vocab_size": 301, "n_positions": 2048},  # a vocabulary that is no multiple of four
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("family", GPU_MODELS)
def test_gpu_a_prompt_alone_and_among_127_others(family: str, dtype: str, tmp_path: Path) -> None:
    places = random.sample(range(128), 8)
    check_among_127(tmp_path, family, "cuda", dtype, places, longest=300, **GPU_MODELS[family])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", GPU_MODELS)
def test_gpu_graphs_chunks_and_preemption_change_no_bit(family: str, tmp_path: Path) -> None:
    path = tiny_model(tmp_path, family, **GPU_MODELS[family])
    made = LLM(path, dtype="bfloat16", device="cuda", weights="dummy", seed=3, deterministic=True).model
    requests = [Request(i, (*BASES[i % 2][: 7 * i % 55], i % 3), KINDS[i % len(KINDS)], i) for i in range(23)]
    plain = run(Engine(made, pages=400, graphs=False, lookahead=0, prefix_caching=False), requests)
    tight = Engine(made, pages=30, seats=12, sweep_tokens=64, admission=Continuous(horizon=0))
    for _ in range(2):
        assert run(tight, requests) == plain
    assert tight.recorded > 0
    for request in requests[:6]:
        assert run(Engine(made, pages=40), [request])[request.id] == plain[request.id]
