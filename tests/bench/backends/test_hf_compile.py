"""transformers with a static cache, and with its decode step compiled."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from inferometer.bench.backends.hf import HFBackend
from inferometer.bench.backends.hf_compile import HFCompileBackend
from inferometer.bench.backends.prompts import random_prompts
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.measurement.benchmark import benchmark
from inferometer.model.description import describe
from inferometer.nn.load import open_source
from inferometer.schedule.sampling import SamplingParams
from tiny_models import tiny_model

# Rotary positions and grouped heads, slopes; the others bring no other kind of cache.
FAMILIES = ("llama", "bloom", *(pytest.param(name, marks=pytest.mark.slow) for name in ("opt", "gpt2", "gpt_bigcode")))


def opened(kind: type[HFBackend], folder: Path) -> Any:
    description = describe(str(folder), config_only=True)
    return kind(description.config, description.spec, open_source(description, weights="dummy"), torch.device("cpu"), torch.float32)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's own graphs, run as they are: what matters is caught, and no compiler takes its seconds."""
    monkeypatch.setattr(HFCompileBackend, "compiler", "eager")


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_a_cache_that_grows(tmp_path: Path, family: str) -> None:
    folder = tiny_model(tmp_path, family)
    compiled, eager = opened(HFCompileBackend, folder), opened(HFBackend, folder)
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    for rows in (2, 2, 3):
        prompts = random_prompts(rows, rows, 7, 300)
        tokens = []
        for backend in (compiled, eager):
            backend.prepare(rows, 13)
            backend.generate(prompts, params)
            tokens.append(backend.finish())
        assert tokens[0] == tokens[1]
    compiled.close()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_one_graph_that_is_made_once_a_size(tmp_path: Path, family: str) -> None:
    """A break would be a wait for the device in every step, and a graph a step would be measured as the model's speed."""
    compiled = opened(HFCompileBackend, tiny_model(tmp_path, family))
    compiled.prepare(2, 20)
    torch._dynamo.utils.counters.clear()  # type: ignore[no-untyped-call]
    for _ in range(2):
        compiled.generate(random_prompts(0, 2, 9, 300), SamplingParams(max_new_tokens=8, ignore_eos=True))
        compiled.finish()
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    compiled.close()


@pytest.mark.usefixtures("traced")
def test_the_cache_is_the_batchs_and_goes_with_it(tmp_path: Path) -> None:
    compiled = opened(HFCompileBackend, tiny_model(tmp_path, "llama"))
    weights = compiled.resident_bytes
    with pytest.raises(RuntimeError, match="prepared"):
        compiled.prefill([[1, 2]], SamplingParams(max_new_tokens=2))
    compiled.prepare(2, 16)
    compiled.generate([[1, 2], [3, 4]], SamplingParams(max_new_tokens=3, ignore_eos=True))
    # Two layers of keys and values, two rows of 16 places of 16 numbers in float32.
    assert compiled.resident_bytes == weights + 2 * 2 * 2 * 16 * 16 * 4
    compiled.abandon()
    assert compiled.resident_bytes == weights
    compiled.close()


@pytest.mark.slow
@pytest.mark.skipif(" " in tempfile.gettempdir(), reason="torch's compiler takes no folder with a space")
def test_a_case_through_the_real_compiler(tmp_path: Path) -> None:
    asked = BenchRequest(
        model=str(tiny_model(tmp_path, "llama")), weights="dummy", dtype="float32", device="cpu", batch_sizes=(1, 2), runs=2,
        backends=("hf", "hf-compile"), sequence_length=9, decode_length=4,
    )  # fmt: skip
    records = benchmark(asked, lambda record: None)
    assert [(r.backend, r.status) for r in records] == [("hf", "ok"), ("hf-compile", "ok")] * 2, [r.evidence for r in records]
    compiled = records[1]
    assert compiled.checked is not None
    assert "against hf" in compiled.checked.method
    assert compiled.predicted is not None
    assert records[0].predicted is not None
    assert compiled.predicted.decode_token_ms != records[0].predicted.decode_token_ms
