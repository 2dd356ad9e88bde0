"""LLM.int8 over a stand-in for bitsandbytes: which maps are quantized, of which weights, and what a record says of it."""

from __future__ import annotations

import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from inferometer.bench.backends import requirement
from inferometer.bench.backends.hf import HFBackend
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.measurement.benchmark import benchmark
from inferometer.model.description import describe
from inferometer.nn.load import open_source
from tiny_models import tiny_model

FAMILIES = ("llama", "bloom", "opt", "gpt2", "gpt_bigcode", "bert")


class Int8Params(nn.Parameter):
    """Quantizes, as the package does, when it is moved to its device."""

    moved = False

    def __new__(cls, data: torch.Tensor, requires_grad: bool, has_fp16_weights: bool) -> Any:
        assert not requires_grad
        assert not has_fp16_weights
        return torch.Tensor._make_subclass(cls, data, False)

    def to(self, device: Any) -> Any:
        scale = self.data.abs().amax(1, keepdim=True) / 127
        made = torch.Tensor._make_subclass(Int8Params, (self.data / scale).round().to(torch.int8), False)
        made.scale = scale
        return made


class Linear8bitLt(nn.Linear):
    def __init__(self, columns: int, rows: int, *, bias: bool, has_fp16_weights: bool, threshold: float, device: str) -> None:
        super().__init__(columns, rows, bias=bias, device=device)
        assert (has_fp16_weights, threshold) == (False, 6.0)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(given, self.weight.data.to(given.dtype) * self.weight.scale, self.bias)  # type: ignore[operator]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("bitsandbytes")
    module.nn = types.SimpleNamespace(Linear8bitLt=Linear8bitLt, Int8Params=Int8Params)
    monkeypatch.setitem(sys.modules, "bitsandbytes", module)
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.50.2" if name == "bitsandbytes" else version(name))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_map_but_the_head_is_quantized_to_what_it_was(tmp_path: Path, family: str) -> None:
    description = describe(str(tiny_model(tmp_path, family)), config_only=True)
    given = (description.config, description.spec, open_source(description, weights="dummy"), torch.device("cpu"), torch.float32)
    plain, quantized = HFBackend(*given), HFBackend(*given, quantize="int8")
    maps = [module for module in quantized._model.modules() if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"]
    rest = [module for module in maps if not isinstance(module, Linear8bitLt)]
    assert rest == ([] if family == "bert" else [quantized._model.get_output_embeddings()])
    assert "bitsandbytes 0.50.2 LLM.int8" in quantized.stack_version
    assert quantized.resident_bytes < plain.resident_bytes
    assert quantized.coarsest == torch.bfloat16
    prompts = [[1, 2, 3, 4, 5]]
    theirs, ours = plain.logits(prompts, last_only=False), quantized.logits(prompts, last_only=False)
    assert 0 < float((ours - theirs).abs().max()) < 0.05 * float(theirs.abs().max())


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("quantize", ["int8", "bitsandbytes"])
def test_a_case_says_what_it_ran_and_is_priced_as_that(tmp_path: Path, quantize: str) -> None:
    asked = BenchRequest(
        model=str(tiny_model(tmp_path, "llama")), weights="dummy", dtype="fp32", device="cpu", batch_sizes=(2,), runs=1,
        quantize=quantize, backends=("hf",),
    )  # fmt: skip
    (record,) = benchmark(asked, lambda record: None)
    assert (record.status, record.quantize) == ("ok", quantize), record.evidence
    assert record.predicted is not None


def test_without_the_package_the_case_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = requirement.find_spec
    monkeypatch.setattr(requirement, "find_spec", lambda name: None if name == "bitsandbytes" else found(name))
    asked = BenchRequest(
        model=str(tiny_model(tmp_path, "llama")), weights="dummy", dtype="fp32", device="cpu", batch_sizes=(2,), quantize="int8",
        backends=("hf",),
    )  # fmt: skip
    (record,) = benchmark(asked, lambda record: None)
    assert (record.status, record.evidence) == (
        "skipped",
        "--backend hf needs bitsandbytes, which is not installed; pip install 'bitsandbytes'",
    )
