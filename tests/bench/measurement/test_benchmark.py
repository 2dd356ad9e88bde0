"""The whole benchmark on tiny models: the native engine and transformers on the same dummy weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inferometer.bench.backends import hf, native, opening
from inferometer.bench.backends.hf import HFBackend
from inferometer.bench.backends.native import NativeBackend
from inferometer.bench.backends.prompts import random_prompts
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.measurement.benchmark import benchmark
from inferometer.bench.measurement.check import relative_error
from inferometer.bench.records.record import Record
from inferometer.engine.llm import LLM
from inferometer.model.description import describe
from inferometer.nn.load import open_source
from inferometer.nn.source import CheckpointSource
from tiny_models import tiny_model


def run(model: Path, **changes: Any) -> list[Record]:
    values: dict[str, Any] = {
        "model": str(model), "weights": "dummy", "dtype": "float32", "device": "cpu", "batch_sizes": (1, 3), "sequence_length": 9,
        "decode_length": 4, "runs": 2, "warmups": 0, "backends": ("native", "hf"),
    }  # fmt: skip
    if changes.get("forward_only") or describe(str(model), config_only=True).spec.encoder:
        del values["decode_length"]
    return benchmark(BenchRequest(**{**values, **changes}), lambda record: None)


@pytest.mark.parametrize(
    "family", ["llama", "gpt_bigcode", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bloom", "opt", "gpt2"))]
)
def test_a_decoder_on_both_backends(tmp_path: Path, family: str) -> None:
    records = run(tiny_model(tmp_path, family))
    assert [(r.backend, r.batch_size, r.status) for r in records] == [
        (backend, size, "ok") for size in (1, 3) for backend in ("native", "hf")
    ]
    for record in records:
        assert record.checked is not None
        assert record.checked.passed
        assert record.model == f"tiny-{family}"
        assert record.device == "cpu"
        assert record.decode_total_ms is not None
        assert str(tmp_path) not in str(record.to_json())
    assert records[0].checked is not None
    assert "last-position logits, all-position logits of 1 x 9 tokens, 4 cached decode tokens against hf" in records[0].checked.method


def test_an_encoder_on_both_backends(tmp_path: Path) -> None:
    for record in run(tiny_model(tmp_path, "bert")):
        assert record.status == "ok", record.evidence
        assert record.forward_ms is not None
        assert record.decode_length is None
        assert record.prefill_ms is None


def test_an_encoder_alone_is_checked_against_itself(tmp_path: Path) -> None:
    (record,) = run(tiny_model(tmp_path, "bert"), backends=("native",), batch_sizes=(1,))
    assert record.checked is not None
    assert record.checked.passed


@pytest.mark.parametrize("backends", [("native", "hf"), ("native",), ("hf",)])
def test_a_forward_with_loss(tmp_path: Path, backends: tuple[str, ...]) -> None:
    for record in run(tiny_model(tmp_path, "opt"), forward_only=True, loss=True, sequence_length=64, backends=backends):
        assert record.status == "ok", record.evidence
        assert record.checked is not None
        assert "loss" in record.checked.method


@pytest.mark.parametrize(
    "sampling", [{"do_sample": True}, {"top_k": 5, "temperature": 0.7}, {"top_p": 0.9, "typical_p": 0.9, "repetition_penalty": 1.2}]
)
def test_sampling_runs_on_both(tmp_path: Path, sampling: dict[str, Any]) -> None:
    records = run(tiny_model(tmp_path, "llama"), batch_sizes=(2,), **sampling)
    assert [r.status for r in records] == ["ok", "ok"]
    assert records[0].sampling["repetition_penalty"] == sampling.get("repetition_penalty")


def test_a_broken_native_model_prints_no_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = native.open_backend

    def broken(*arguments: Any) -> NativeBackend:
        backend = opened(*arguments)
        with torch.no_grad():
            backend._llm.model.layers[1].attention.output.weight.mul_(-1)  # type: ignore[attr-defined]
        return backend

    monkeypatch.setattr(native, "open_backend", broken)
    ours, theirs = run(tiny_model(tmp_path, "llama"), batch_sizes=(2,))
    assert (ours.status, theirs.status) == ("error", "ok")
    assert ours.evidence is not None
    assert "correctness check failed" in ours.evidence
    assert ours.prefill_ms is None


def test_a_backend_that_cannot_load_is_a_row_and_the_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(hf, "open_backend", fail)
    records = run(tiny_model(tmp_path, "gpt2"), batch_sizes=(2,))
    assert [r.status for r in records] == ["ok", "oom"]
    assert records[1].evidence == "loading the model failed: OutOfMemoryError: CUDA out of memory"


def test_a_batch_that_the_cache_cannot_hold_is_oom_and_the_others_run(tmp_path: Path) -> None:
    # A token takes 2 layers x 2 tensors x 16 numbers x 4 bytes. The cap is on the cache and the activations of a full sweep.
    per_token = 256
    gibibytes = 1 / 32
    records = run(tiny_model(tmp_path, "llama"), backends=("native",), batch_sizes=(1, 10**6 // 8, 2), gpu_memory=gibibytes, runs=1)
    assert 10**6 // 8 * 13 * per_token > gibibytes * 2**30
    assert [r.status for r in records] == ["ok", "oom", "ok"]
    assert records[1].evidence is not None
    assert "125000 x 12 tokens together need 125000 pages of KV cache" in records[1].evidence
    assert "are available" in records[1].evidence
    assert records[0].memory_limit == 2**25


def test_no_room_for_any_cache_is_oom(tmp_path: Path) -> None:
    (record,) = run(tiny_model(tmp_path, "llama"), backends=("native",), batch_sizes=(1,), gpu_memory=1e-6)
    assert record.status == "oom"
    assert record.evidence is not None
    assert "pages of KV cache: 1 needed, 0 available; no memory is left for the KV cache" in record.evidence
    assert "and then" not in record.evidence


def test_the_reference_is_exact_for_a_while_and_then_as_before(tmp_path: Path) -> None:
    description = describe(str(tiny_model(tmp_path, "bloom")), config_only=True)
    source = open_source(description, weights="dummy", seed=0)
    backend = HFBackend(description.config, description.spec, source, torch.device("cpu"), torch.bfloat16)
    prompts = random_prompts(0, 2, 40, 300)
    before = backend.logits(prompts, last_only=False)
    with backend.exact():
        exact = backend.logits(prompts, last_only=False)
    assert torch.equal(backend.logits(prompts, last_only=False), before)
    assert 1e-4 < relative_error(before, exact) < 0.2
    assert len(set(exact.flatten().tolist())) > len(set(exact.bfloat16().flatten().tolist()))


def test_the_seed_decides_the_dummy_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []
    opened = opening.open_source

    class Spy:
        def __init__(self, source: CheckpointSource) -> None:
            self._source = source

        def __getattr__(self, name: str) -> Any:
            return getattr(self._source, name)

        def read(self, *arguments: Any) -> torch.Tensor:
            tensor = self._source.read(*arguments)
            read.append(float(tensor.double().sum()))
            return tensor

    monkeypatch.setattr(opening, "open_source", lambda *a, **k: Spy(opened(*a, **k)))
    run(tiny_model(tmp_path, "llama"), batch_sizes=(1,), seed=3)
    first = list(read)
    assert first
    read.clear()
    run(tiny_model(tmp_path, "llama"), batch_sizes=(1,), seed=4)
    assert read != first


@pytest.mark.parametrize(
    ("admission", "more", "phased", "peak"),
    [
        (None, {}, True, 12),
        ("zigzag", {"group_size": 2}, True, 12),
        ("zigzag", {"group_size": 2, "num_groups": 2}, False, 8),
        ("diagonal", {"group_size": 2}, False, 12),
        ("diagonal", {"group_size": 2, "num_groups": 1}, False, 4),
        ("row", {"group_size": 3}, False, 6),
        ("continuous", {}, False, 12),
    ],
)
def test_an_admission_is_run_and_its_pages_are_counted(
    tmp_path: Path, admission: str | None, more: dict[str, int], phased: bool, peak: int
) -> None:
    """Six rows of two pages, the second from the seventh generated token on."""
    (record,) = run(
        tiny_model(tmp_path, "llama"),
        backends=("native",), batch_sizes=(6,), sequence_length=10, decode_length=12, admission=admission, **more,
    )  # fmt: skip
    assert record.status == "ok", record.evidence
    assert record.checked is not None
    assert record.checked.passed
    assert (record.admission, record.group_size, record.num_groups) == (admission, more.get("group_size"), more.get("num_groups"))
    assert (record.prefill_ms is not None, record.decode_token_ms is not None) == (phased, phased)
    assert record.total_ms is not None
    assert record.throughput.total_tok_s is not None
    assert (record.pages_peak, record.page_size) == (peak, 16)


def test_every_row_has_its_pages_or_the_case_is_oom_while_groups_make_do_with_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLM, "room", lambda llm, *, seats, sweep_tokens: 7)
    asked: dict[str, Any] = {"backends": ("native",), "batch_sizes": (3, 4), "sequence_length": 10, "decode_length": 12}
    fits, refused = run(tiny_model(tmp_path, "llama"), **asked)
    assert (fits.status, fits.pages_peak, refused.status, refused.pages_peak) == ("ok", 6, "oom", None)
    assert "4 x 21 tokens together need 8 pages of KV cache" in str(refused.evidence)
    assert "(32.0 KiB), 7 (28.0 KiB) are available" in str(refused.evidence)
    whole, blocks = run(tiny_model(tmp_path, "llama"), admission="zigzag", group_size=2, **asked)
    assert (whole.status, blocks.status) == ("ok", "ok")
    assert (whole.prefill_ms is not None, blocks.prefill_ms is not None) == (True, False)
    assert blocks.pages_peak == 4
    assert [r.status for r in run(tiny_model(tmp_path, "llama"), admission="row", group_size=4, **asked)] == ["ok", "oom"]


def test_a_model_larger_than_the_hosts_memory_is_a_row_that_says_so() -> None:
    """Loading it would have the process killed. No machine that runs this test has the 705 GB."""
    records = run(Path("bloom-176b"), dtype="float32", batch_sizes=(1,))
    assert [(r.backend, r.status) for r in records] == [("native", "oom"), ("hf", "oom")]
    assert all("the weights of bloom-176b in float32 need 656.6 GiB" in str(r.evidence) for r in records)


def test_the_hf_backend_is_as_from_pretrained_leaves_a_model(tmp_path: Path) -> None:
    """Frozen weights send transformers' head down a path that copies its matrix once a row, and flatter whatever stands beside it."""
    description = describe(str(tiny_model(tmp_path, "llama")))
    backend = HFBackend(
        description.config, description.spec, open_source(description, weights="dummy"), torch.device("cpu"), torch.bfloat16
    )
    assert all(parameter.requires_grad for parameter in backend._model.parameters())
    prompts = [[1, 2, 3], [4, 5, 6]]
    with backend.exact():
        assert backend.logits(prompts, last_only=True).dtype == torch.float32
    assert next(backend._model.parameters()).dtype == torch.bfloat16
