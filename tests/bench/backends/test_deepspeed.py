"""The deepspeed backend over a stand-in for the package: what it is given, and caches as transformers had them before version 5."""

from __future__ import annotations

import os
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inferometer.bench.backends import requirement
from inferometer.bench.backends.deepspeed import DeepSpeedBackend, PastBatch
from inferometer.bench.backends.entries import DEEPSPEED
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.measurement.benchmark import benchmark
from inferometer.model.config import read_spec
from inferometer.model.description import describe
from inferometer.nn.load import open_source
from inferometer.schedule.sampling import SamplingParams
from tiny_models import CONFIGS, tiny_model


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What init_inference was called with."""
    calls: list[dict[str, Any]] = []
    module: Any = types.ModuleType("deepspeed")
    module.__version__ = "0.19.8"
    module.__spec__ = ModuleSpec("deepspeed", None)  # transformers looks for it

    def init_inference(model: Any, **options: Any) -> Any:
        calls.append(options)
        return SimpleNamespace(module=model)

    module.init_inference = init_inference
    monkeypatch.setitem(sys.modules, "deepspeed", module)
    return calls


def test_a_case_on_the_cpu_runs_without_its_kernels_and_says_so(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    request = BenchRequest(
        model=str(tiny_model(tmp_path, "llama")), weights="dummy", dtype="fp32", device="cpu", batch_sizes=(1, 3), runs=2,
        backends=("deepspeed",), sequence_length=9, decode_length=4,
    )  # fmt: skip
    records = benchmark(request, lambda record: None)
    assert [r.status for r in records] == ["ok", "ok"], [r.evidence for r in records]
    assert records[0].stack_version.startswith("0.19.8 no kernel injection, transformers ")
    assert records[0].predicted is not None
    assert asked == [{"tensor_parallel": {"tp_size": 1}, "dtype": torch.float32, "replace_with_kernel_inject": False, "max_out_tokens": 64}]


@pytest.mark.parametrize(
    ("named", "plain"),
    [("9.0a", "9.0"), ("8.0 9.0a+PTX", "8.0 9.0+PTX"), ("8.6;10.0f;12.0", "8.6;10.0;12.0"), ("7.5", "7.5"), (None, None)],
)
def test_architectures_that_containers_name_are_those_it_can_read(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, named: str | None, plain: str | None
) -> None:
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    if named is not None:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", named)
    description = describe(str(tiny_model(tmp_path, "llama")), config_only=True)
    DeepSpeedBackend(description.config, description.spec, open_source(description, weights="dummy"), torch.device("cpu"), torch.float32)
    assert len(asked) == 1
    assert os.environ.get("TORCH_CUDA_ARCH_LIST") == plain


class Workspace:
    released = 0

    def release_workspace(self) -> None:
        Workspace.released += 1


class Layer(torch.nn.Module):
    """As DeepSpeed's: all share a workspace that the first batch makes."""

    workspace: Any = Workspace()

    def __init__(self) -> None:
        super().__init__()
        self._should_allocate_workspace = False


def test_every_batch_has_a_workspace_of_its_own(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    description = describe(str(tiny_model(tmp_path, "bloom")), config_only=True)
    source = open_source(description, weights="dummy")
    backend = DeepSpeedBackend(description.config, description.spec, source, torch.device("cpu"), torch.float32)
    layers = torch.nn.ModuleList([Layer(), Layer()])
    backend.prepare(2, 9)
    assert Workspace.released == 0  # nothing of DeepSpeed's is in the model
    backend._model, backend.injected = layers, True
    backend.prepare(2, 9)
    assert [layer._should_allocate_workspace for layer in layers] == [True, True]
    assert Workspace.released == 2
    backend.abandon()
    assert Workspace.released == 2  # there is none to release
    backend.close()


def test_a_second_model_s_layers_are_counted_from_the_first(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Attention:
        num_layers = 24
        _qkv_buffers = (1, 2)

    class Transformer:
        layer_id = 24
        workspace = "of the model that is gone"

    ds_transformer = SimpleNamespace(DeepSpeedTransformerInference=Transformer)
    monkeypatch.setitem(sys.modules, "deepspeed.model_implementations.transformers.ds_transformer", ds_transformer)
    ds_attention = SimpleNamespace(DeepSpeedSelfAttention=Attention)
    monkeypatch.setitem(sys.modules, "deepspeed.ops.transformer.inference.ds_attention", ds_attention)
    description = describe(str(tiny_model(tmp_path, "bloom")), config_only=True)
    source = open_source(description, weights="dummy")
    backend = DeepSpeedBackend(description.config, description.spec, source, torch.device("cpu"), torch.float32)
    assert Transformer.layer_id == 24  # on the CPU its layers are not used
    monkeypatch.setattr(DeepSpeedBackend, "_takes_kernels", staticmethod(lambda spec, device: True))
    backend = DeepSpeedBackend(description.config, description.spec, source, torch.device("cpu"), torch.float32)
    assert backend.injected
    assert (Transformer.layer_id, Transformer.workspace, Attention.num_layers, list(Attention._qkv_buffers)) == (0, None, 0, [])


def test_pasts_come_back_with_every_step_and_the_mask_covers_them() -> None:
    seen: list[tuple[list[int], Any, int]] = []

    def model(input_ids: Any, attention_mask: Any, past_key_values: Any, use_cache: bool) -> Any:
        seen.append((list(input_ids.shape), past_key_values, attention_mask.shape[1]))
        logits = torch.zeros(*input_ids.shape, 7)
        logits[:, :, len(seen)] = 1
        return SimpleNamespace(logits=logits, past_key_values=f"past {len(seen)}")

    model.forward = lambda input_ids, past_key_values: None  # type: ignore[attr-defined]
    batch = PastBatch(model, torch.zeros(2, 5, dtype=torch.long), SamplingParams(max_new_tokens=3, ignore_eos=True), None)
    batch.step()
    batch.step()
    assert seen == [([2, 5], None, 5), ([2, 1], "past 1", 6), ([2, 1], "past 2", 7)]
    assert torch.cat(batch.tokens, 1).tolist() == [[1, 2, 3]] * 2


def test_bloom_needs_an_old_transformers_and_may_have_it_in_a_python_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirement, "_version", lambda module: {"transformers": "5.24.0"}.get(module, "0.19.8"))
    request = BenchRequest(model=None, batch_sizes=(1,), backends=("deepspeed",))
    assert DEEPSPEED.missing(request, read_spec(CONFIGS["opt"], "tiny")) is None
    assert DEEPSPEED.missing() is None
    reason = str(DEEPSPEED.missing(request, read_spec(CONFIGS["bloom"], "tiny")))
    assert "needs transformers 4.43.4 or older, and 5.24.0 is installed; pip install 'transformers<=4.43.4'" in reason
    assert "INFEROMETER_PYTHON_DEEPSPEED" in reason
    monkeypatch.setattr(requirement, "_version", lambda module: {"transformers": "4.43.4"}.get(module, "0.19.8"))
    assert DEEPSPEED.missing(request, read_spec(CONFIGS["bloom"], "tiny")) is None


def test_without_the_package_it_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirement, "_version", lambda module: None)
    request = BenchRequest(
        model=str(tiny_model(tmp_path, "llama")), weights="dummy", dtype="fp32", device="cpu", batch_sizes=(1,), backends=("deepspeed",)
    )
    (record,) = benchmark(request, lambda record: None)
    assert (record.status, record.evidence) == (
        "skipped",
        "--backend deepspeed needs deepspeed, which is not installed; pip install 'deepspeed'",
    )
