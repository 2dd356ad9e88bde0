"""`LLM(offload=...)`: the resident engine's tokens in every order, and models that go when they are closed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from offloaded import Maker, told
from safetensors.torch import save_file

from inferometer import LLM, SamplingParams
from inferometer.cli.progress import Bar
from inferometer.engine.quantize import quantize
from inferometer.engine.residency.link import MemoryLink
from inferometer.model.description import describe
from inferometer.model.families import family
from inferometer.model.formats import weight_format
from inferometer.nn.dummy import DummySource
from tiny_models import CONFIGS, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore::inferometer.errors.PointlessWarning")

DECODERS = [kind for kind in CONFIGS if kind != "bert"]
ORDERS = [("continuous", None), ("zigzag", 2), ("diagonal", 2), ("row", 1)]


@pytest.fixture(scope="module")
def opened(made: Maker) -> Iterator[Maker]:
    """A model by its family, admission, group size and what is offloaded, once for all who ask."""

    @cache
    def kept(kind: str, admission: str, group_size: int | None, offload: str | None) -> LLM:
        return made(kind, admission=admission, group_size=group_size, offload=offload)

    yield kept
    kept.cache_clear()


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.parametrize("kind", DECODERS)
def test_every_order_gives_the_resident_engines_tokens(opened: Maker, kind: str, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=7))
    prompts = [[(7 * number + 3 * place) % 300 for place in range(length)] for number, (length, _) in enumerate(lengths)]
    params = [
        SamplingParams(
            max_new_tokens=new, temperature=1.7 if number % 2 else 1.0, seed=number, stop_token_ids=(5, 80, 200), ignore_eos=True
        )
        for number, (_, new) in enumerate(lengths)
    ]
    wanted = told(opened(kind, "continuous", None, None).generate(prompts, params))
    for admission, size in ORDERS:
        assert told(opened(kind, admission, size, "weights:0.7").generate(prompts, params)) == wanted


@pytest.mark.parametrize("fraction", ["0", "0.01", "0.3", "0.5", "0.999", "1"])
@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_fractions_and_formats(made: Maker, fraction: str, quantize: str | None) -> None:
    params = SamplingParams(max_new_tokens=6, temperature=2.0, seed=1, ignore_eos=True)
    with made("llama", quantize=quantize) as whole, made("llama", quantize=quantize, offload=f"weights:{fraction}") as parted:
        assert told(parted.generate([[1, 2, 3], [4]], params)) == told(whole.generate([[1, 2, 3], [4]], params))


def test_what_quantize_has_written_is_streamed_as_it_is_stored(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama")
    source = DummySource(describe(str(folder), config_only=True).spec, family("llama"), seed=5)
    save_file({name: source.read(name, "cpu", torch.float32) for name in source.tensors()}, folder / "model.safetensors")
    quantize(str(folder), weight_format("int4-g32", "float32"), tmp_path / "int4", progress=Bar)
    params = SamplingParams(max_new_tokens=6, temperature=2.0, seed=1, ignore_eos=True)
    with LLM(tmp_path / "int4", dtype="float32", device="cpu") as whole:
        wanted = told(whole.generate([[1, 2, 3], [4]], params))
    with LLM(tmp_path / "int4", dtype="float32", device="cpu", offload="weights") as parted:
        assert parted.model.quantised
        assert told(parted.generate([[1, 2, 3], [4]], params)) == wanted


def test_encoders_stream_too(made: Maker) -> None:
    with made("bert") as whole, made("bert", offload="weights:0.5") as parted:
        assert (parted.encode([[1, 2, 3], [4, 5]]) == whole.encode([[1, 2, 3], [4, 5]])).all()


def test_a_deterministic_engine_stays_one(made: Maker) -> None:
    params = SamplingParams(max_new_tokens=8, temperature=1.5, seed=3, ignore_eos=True)
    with made("llama", deterministic=True) as whole, made("llama", deterministic=True, offload="weights:0.5") as parted:
        ours, theirs = parted.generate([[1, 2], [3]], params), whole.generate([[1, 2], [3]], params)
    assert [completion.logprobs for completion in ours] == [completion.logprobs for completion in theirs]


@pytest.mark.parametrize("offload", ["weights", "weights:0.5"])
def test_later_runs_find_the_pages_of_earlier_ones_as_the_resident_engines_do(
    made: Maker, offload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hit changes which rows run together, and on a GPU with it how sums round: so much, and nothing else, tells a later run from the
    first."""
    monkeypatch.setattr("inferometer.engine.residency.load.link_to", lambda device: MemoryLink(40e6))
    prompts = [[row + 1, *range(1, 36 + row)] for row in range(6)]
    params = SamplingParams(max_new_tokens=9, ignore_eos=True)

    def runs(**options: Any) -> list[list[tuple[list[int], list[float]]]]:
        found = []
        with made("llama", **options) as llm:
            llm.model.compiled = None  # the CPU's own code, which adds in another order, is for resident layers
            for number in range(3):
                found.append([(each.token_ids, each.logprobs) for each in llm.generate(prompts, params)])
                assert (llm.engine.scheduler.hit_pages > 0) == (number > 0)
        return found

    whole = runs()
    assert runs(offload=offload) == whole
    assert [[ids for ids, _ in run] for run in whole[1:]] == [[ids for ids, _ in whole[0]]] * 2


@pytest.mark.parametrize("options", [{}, {"offload": "weights:0.5"}, {"offload": "weights,pages", "host_memory": 0.01}])
def test_a_closed_model_goes_with_its_last_name(made: Maker, options: dict[str, Any]) -> None:
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    made("llama", **options).generate([[1, 2]], params)  # what is imported and kept for all
    gc.collect()
    gc.disable()
    try:
        llm = made("llama", **options)
        llm.generate([[1, 2]], params)
        engine = llm.engine
        parts = [weakref.ref(part) for part in (llm, llm.model, engine, engine.scheduler, engine.cache, engine.cache.keys)]
        del engine
        llm.close()
        del llm
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()


def test_a_closed_model_says_so(made: Maker) -> None:
    llm = made("llama", offload="weights")
    llm.generate([[1]], SamplingParams(max_new_tokens=2))
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate([[1]], SamplingParams(max_new_tokens=2))
