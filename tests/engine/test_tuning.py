"""Choosing launches: measured once, kept on file, bounded in time, and never another result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inferometer.engine import tuning
from inferometer.engine.tuning import tune
from inferometer.kernels.skinny_choice import BUCKETS
from inferometer.kernels.skinny_launch import Tiling, candidates
from inferometer.model.description import describe
from inferometer.nn.linear import Linear
from inferometer.nn.transformer import Transformer

LAUNCH = Tiling(64, 128, 4, 4, 2)


@pytest.fixture
def model() -> Transformer:
    spec = describe("opt-125m", config_only=True).spec
    with torch.device("meta"):
        return Transformer(spec, torch.device("meta"), torch.bfloat16)


class Gpu:
    """Says what is fastest, and counts how often it was asked."""

    def __init__(self, answer: Tiling | None) -> None:
        self.answer = answer
        self.asked: list[tuple[int, torch.Size]] = []

    def fastest(self, rows: int, weights: list[torch.Tensor], norm_s: float) -> Tiling | None:
        assert len({weight.shape for weight in weights}) == 1
        assert bool(norm_s) is (tuple(weights[0].shape) in {(2304, 768), (3072, 768)})  # what follows a norm
        self.asked.append((rows, weights[0].shape))
        return self.answer


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Tiling | None], Gpu]:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "usable", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A Card")

    def install(answer: Tiling | None) -> Gpu:
        card = Gpu(answer)
        monkeypatch.setattr(tuning, "fastest", card.fastest)
        return card

    return install


def linears(model: Transformer) -> list[Linear]:
    return [module for module in model.modules() if isinstance(module, Linear)]


def test_each_shape_is_measured_once(model: Transformer, gpu: Any) -> None:
    card = gpu(LAUNCH)
    shapes = {(2304, 768), (768, 768), (3072, 768), (768, 3072), (50272, 768)}
    assert tune(model) == len(shapes) * len(BUCKETS)
    assert sorted(card.asked) == sorted((rows, torch.Size(shape)) for rows in BUCKETS for shape in shapes)
    assert all(linear.launches == dict.fromkeys(BUCKETS, LAUNCH) for linear in linears(model))
    assert model.head is not None
    assert model.head.launches == dict.fromkeys(BUCKETS, LAUNCH)


def test_the_next_start_measures_nothing(model: Transformer, gpu: Any) -> None:
    gpu(None)
    tune(model, (1, 8))
    for linear in linears(model):
        linear.launches = {}
    again = gpu(LAUNCH)
    assert tune(model, (1, 8)) == 0
    assert not again.asked
    assert all(linear.launches == {1: None, 8: None} for linear in linears(model))


def test_a_damaged_file_is_measured_anew(model: Transformer, gpu: Any, tmp_path: Path) -> None:
    gpu(None)
    tune(model, (1,))
    (file,) = (tmp_path / "kernels").iterdir()
    file.write_text(file.read_text()[:-20])
    again = gpu(LAUNCH)
    assert tune(model, (1,)) == len(again.asked) == 5
    assert all(linear.launches == {1: LAUNCH} for linear in linears(model))


def test_time_runs_out(model: Transformer, gpu: Any) -> None:
    """Nothing more is measured; the table decides, and the next start goes on."""
    card = gpu(LAUNCH)
    assert tune(model, seconds=0) == 0
    assert not card.asked
    assert all(linear.launches == {} for linear in linears(model))
    assert tune(model, (1,)) == 5


def test_nothing_is_done_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Transformer) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))
    assert tune(model) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("library", "kernel", "wanted"), [(5e-6, 9e-6, False), (9e-6, 5e-6, True), (5.0e-6, 5.5e-6, True)])
def test_the_faster_one_is_chosen(monkeypatch: pytest.MonkeyPatch, library: float, kernel: float, wanted: bool) -> None:
    """Launches that fail are left out; a kernel may be slower by what separate operations would cost."""
    times = iter([library, *(RuntimeError("out of shared memory"), kernel, *[kernel * 2] * 8)])

    def duration(runs: Any, device: Any) -> float:
        time = next(times)
        if isinstance(time, Exception):
            raise time
        return time

    monkeypatch.setattr(tuning, "duration", duration)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("Card", (), {"L2_cache_size": 1000}))
    found = tuning.fastest(8, [torch.zeros(16, 32)], 0.0)
    assert found == (candidates(8, 32)[1] if wanted else None)


def test_a_launch_that_norms_may_be_slower_by_what_a_norm_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = candidates(2, 32)
    assert launches[0].whole
    assert not launches[-1].whole
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("Card", (), {"L2_cache_size": 1000}))
    for norm_s, wanted in ((0.0, launches[-1]), (2e-6, launches[0])):
        times = iter([9e-6, 6e-6, *[8e-6] * (len(launches) - 2), 5e-6])
        monkeypatch.setattr(tuning, "duration", lambda runs, device, times=times: next(times))
        assert tuning.fastest(2, [torch.zeros(16, 32)], norm_s) == wanted


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_tunes_within_its_time_and_changes_no_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))
    spec = describe("opt-125m", config_only=True).spec
    model = Transformer(spec, torch.device("cuda"), torch.bfloat16)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02)
    assert tune(model, (1, 8), seconds=60) == 10
    for linear in linears(model)[:4]:
        for rows in (1, 2, 7, 8):
            x = torch.randn(rows, linear.weight.shape[1], device="cuda", dtype=torch.bfloat16)
            exact = x.double() @ linear.weight.double().T + (0 if linear.bias is None else linear.bias.double())
            torch.testing.assert_close(linear(x).double(), exact, atol=2e-2, rtol=2e-2)
    assert tune(model, (1, 8), seconds=0) == 0
