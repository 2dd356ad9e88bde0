"""On a GPU: streamed layers give what resident ones give, run by run, launched kernel by kernel and recorded."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from inferometer import LLM
from inferometer.engine.engine import Engine
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::inferometer.errors.PointlessWarning"),
]
PROMPTS = [tuple((7 * row + place) % 500 for place in range(5 + 11 * row)) for row in range(6)]


def runs(graphs: bool, **options: Any) -> list[list[tuple[int, float]]]:
    """Three runs in one engine without a prefix cache, whose hits would change the shapes of a second run and so its rounding."""
    found = []
    with LLM("opt-125m", device="cuda", weights="dummy", gpu_memory=8, **options) as llm:
        engine = Engine(llm.model, pages=200, prefix_caching=False, graphs=graphs)
        for _ in range(3):
            for row, prompt in enumerate(PROMPTS):
                engine.add(Request(row, prompt, SamplingParams(max_new_tokens=24, ignore_eos=True), row))
            tokens: dict[int, list[tuple[int, float]]] = {}
            while engine.has_work:
                for emission in engine.step():
                    tokens.setdefault(emission.request_id, []).append((emission.token_id, emission.logprob))
            found.append([each for row in sorted(tokens) for each in tokens[row]])
        engine.close()
    gc.collect()
    torch.cuda.empty_cache()
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("quantize", [None, "int4", "int8"])
@pytest.mark.parametrize("graphs", [False, True])
def test_every_run_gives_the_resident_models_tokens_and_log_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, quantize: str | None, graphs: bool
) -> None:
    monkeypatch.setattr("inferometer.engine.loaded_model.tune", lambda model: 0)  # both sides with the launches of the table
    wanted = runs(graphs, dtype=dtype, quantize=quantize)
    for options in (
        {"offload": "weights"},
        {"offload": "weights:0.3"},
        {"percent": (20, 50, 100, 0, 100, 0), "disk": tmp_path},
    ):
        assert runs(graphs, dtype=dtype, quantize=quantize, **options) == wanted


def test_a_load_keeps_to_the_gpus_limit() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with LLM("opt-6.7b", dtype="bfloat16", device="cuda", weights="dummy", offload="weights", gpu_memory=6) as llm:
        llm.generate([[1] * 400] * 8, SamplingParams(max_new_tokens=4, ignore_eos=True))
        assert torch.cuda.max_memory_allocated() - before <= 6 * 2**30


@pytest.mark.parametrize("order", ["zigzag", "diagonal"])
def test_sweeps_of_all_the_tokens_there_can_be_keep_to_the_gpus_limit(order: str) -> None:
    """Contexts are short beside a sweep, so that no few prompts fill it."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    options = {"offload": "weights", "gpu_memory": 6, "admission": order, "group_size": 4}
    with LLM("opt-1.3b", dtype="bfloat16", device="cuda", weights="dummy", **options) as llm:
        llm.generate([[row, *[1] * 1500] for row in range(48)], SamplingParams(max_new_tokens=3, ignore_eos=True))
        assert torch.cuda.max_memory_allocated() - before <= 6 * 2**30
