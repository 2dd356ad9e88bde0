"""Measuring this machine's CPU, with sizes so small that only the bookkeeping is tested and not the speed."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inferometer.bench.machine import calibrate as calibrating
from inferometer.bench.machine import microbenchmarks as module
from inferometer.bench.machine.calibrate import calibrate
from inferometer.bench.machine.calibration_plan import Plan, default_plan
from inferometer.bench.machine.doubt import between_quartiles, doubtful
from inferometer.bench.machine.microbenchmarks import Microbenchmarks
from inferometer.bench.machine.rank_sums import HOST_SIZES, SumsError, measured_sums
from inferometer.errors import UserError
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.host import Host

TINY = Plan(budget_s=0.2, buffer_bytes=1 << 20, link_bytes=4096, edges=(16, 32), launches=20, repeats=3)


def test_a_tiny_calibration_of_the_cpu() -> None:
    parts: list[str] = []
    measured = calibrate("cpu", plan=TINY, progress=parts.append)
    assert (measured.device, measured.slug) == ("cpu", "cpu")
    assert measured.threads == torch.get_num_threads()
    assert {"float32", "bfloat16"} <= set(measured.matmul_flop_s)
    assert "tf32" not in measured.matmul_flop_s
    assert 0 < measured.launch_s < 1e-2
    assert measured.graph_kernel_s is None
    assert measured.host_to_device_bytes_s is None
    assert 1e7 < measured.copy_bandwidth_bytes_s < 1e14
    assert all(1 <= count <= TINY.repeats for count in measured.samples.values())
    assert parts[0] == "memory"
    assert "matrix products in float32" in parts
    assert Calibration.from_json(measured.to_json()).to_json() == measured.to_json()


def test_ranks_measure_their_sums_and_what_cannot_be_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def sums(device: torch.device, ranks: int) -> dict[int, float]:
        asked.append((str(device), ranks))
        if ranks == 4:
            raise SumsError("not done after 120 s")
        return {4096: 1e-3}

    monkeypatch.setattr(calibrating, "measured_sums", sums)
    parts: list[str] = []
    measured = calibrate("cpu", plan=replace(TINY, ranks=(2, 4)), progress=parts.append)
    assert asked == [("cpu", 2), ("cpu", 4)]
    assert measured.sums_s == {2: {4096: 1e-3}}
    assert "sums over 4 ranks: not done after 120 s" in measured.notes
    assert "sums over 2 ranks" in parts
    assert Calibration.from_json(json.loads(json.dumps(measured.to_json()))).to_json() == measured.to_json()


def test_two_ranks_of_this_machine_add_up() -> None:
    found = measured_sums(torch.device("cpu"), 2)
    assert set(found) == set(HOST_SIZES)
    assert all(0 < seconds < 10 for seconds in found.values())


def test_ranks_that_do_not_come_are_ended_and_say_so() -> None:
    with pytest.raises(SumsError, match="not done after"):
        measured_sums(torch.device("cpu"), 2, limit_s=0.05)
    with pytest.raises(SumsError, match="UserError: --device cuda:99"):
        measured_sums(torch.device("cuda:99"), 2)


@pytest.mark.parametrize(("seconds", "ranks"), [(10.0, (2, 4)), (3.0, ())])
def test_who_will_not_wait_gets_no_sums(seconds: float, ranks: tuple[int, ...]) -> None:
    host = Host(model="x", vendor="y", cores=3, flags=(), memory_bytes=1 << 30, cache_bytes=1 << 20)
    assert default_plan(torch.device("cpu"), host, seconds).ranks == ranks


def test_the_setting_of_float32_products_is_left_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        calibrate("cpu", plan=TINY)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def fixed_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Every call takes `seconds`, whatever it does."""
    monkeypatch.setattr(Microbenchmarks, "_sample", lambda self, run, inner: seconds)


def test_bytes_are_counted_as_they_move(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_clock(monkeypatch, 0.5)
    bench = Microbenchmarks(torch.device("cpu"), TINY)
    assert bench.copy() == 2 * TINY.buffer_bytes / 0.5
    assert bench.read() == TINY.buffer_bytes / 0.5
    assert bench.matmul("float32", 100.0) == 2 * 32**3 / 0.5


def test_sizes_that_do_not_fit_the_time_are_left_out_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_clock(monkeypatch, 0.5)
    bench = Microbenchmarks(torch.device("cpu"), TINY)
    assert bench.matmul("float32", 1.0) == 2 * 16**3 / 0.5
    assert bench.notes == ["matmul float32: edges from 32 left out, they do not fit the time"]
    told = doubtful(bench.figures, bench.doubts)
    assert told is not None, "repeats that agree say nothing where all were held up alike"
    assert told.startswith("doubtful: float32 (of the smallest product alone, edge 16); ")


def test_a_type_that_the_device_refuses_is_noted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(edge: int, dtype: str, device: torch.device) -> Any:
        raise RuntimeError("not implemented for\nthis type")

    monkeypatch.setattr(module, "_product", refuse)
    measured = calibrate("cpu", plan=TINY)
    assert dict(measured.matmul_flop_s) == {}
    assert "matmul bfloat16: not implemented for" in measured.notes


def test_the_median_of_the_samples_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = iter([0.3, 0.1, 0.2])
    monkeypatch.setattr(Microbenchmarks, "_sample", lambda self, run, inner: next(samples))
    assert Microbenchmarks(torch.device("cpu"), TINY)._seconds("x", lambda: None, 10.0) == 0.2


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([1.0, 1.02, 0.99, 1.01, 5.0], None),  # one outlier is no scatter
        ([1.0, 1.2, 1.1], None),
        ([1.0, 1.0, 2.0, 4.0, 4.0], "copy (the middle half of 5 repeats spans a factor of 4)"),
        ([0.1, 4.0, 0.2], "copy (the middle half of 3 repeats spans a factor of 14)"),
        ([0.3], "copy (measured once)"),
    ],
)
def test_repeats_that_lie_far_apart_are_told(samples: list[float], words: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter(samples)
    monkeypatch.setattr(Microbenchmarks, "_sample", lambda self, run, inner: next(left))
    bench = Microbenchmarks(torch.device("cpu"), replace(TINY, budget_s=1000.0, repeats=len(samples)))
    bench.copy()
    told = doubtful(bench.figures)
    assert (told is None) == (words is None)
    if told is not None:
        assert f"doubtful: {words}; " in told
        assert "calibrate on a quiet machine, or with a longer --seconds" in told
        assert "\n" not in told


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_only_what_a_figure_comes_from_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ways to read and of the sizes of products the best."""
    ways = {"read_sum": iter([1.0, 9.0, 3.0]), "read_matrix_vector": iter([0.5, 0.5, 0.5])}
    ways |= {"matmul_float32_16": iter([1.0, 9.0, 3.0]), "matmul_float32_32": iter([1.0, 1.0, 1.0])}
    ways |= {"own_matmul_float32_16": iter([1.0] * 3), "own_matmul_float32_32": iter([0.5] * 3)}
    measure = Microbenchmarks._seconds
    name = ""

    def named(self: Microbenchmarks, what: str, run: Any, share_s: float) -> float:
        nonlocal name
        name = what
        return measure(self, what, run, share_s)

    monkeypatch.setattr(Microbenchmarks, "_seconds", named)
    monkeypatch.setattr(Microbenchmarks, "_sample", lambda self, run, inner: next(ways[name]))
    bench = Microbenchmarks(torch.device("cpu"), replace(TINY, budget_s=1000.0))
    bench.read()
    assert bench.matmul("float32", 1000.0) == 2 * 32**3 / 1.0
    assert bench.own_matmul("float32", 1000.0) == 2 * 32**3 / 0.5
    assert bench.own_matmul("float16", 1000.0) is None
    assert bench.figures == {"read": [0.5, 0.5, 0.5], "float32": [1.0, 1.0, 1.0], "own float32": [0.5, 0.5, 0.5]}
    assert doubtful(bench.figures) is None


@given(st.lists(st.floats(1e-9, 1e3), min_size=2, max_size=20), st.floats(0.01, 100))
def test_scatter_knows_no_unit_and_no_order(repeats: list[float], unit: float) -> None:
    found = between_quartiles(repeats)
    assert found is not None
    assert found >= 1
    assert between_quartiles([each * unit for each in reversed(repeats)]) == pytest.approx(found)
    assert between_quartiles(repeats[:1]) is None


def test_a_calibration_keeps_what_it_says_of_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = count()
    monkeypatch.setattr(Microbenchmarks, "_sample", lambda self, run, inner: (0.001, 0.004)[next(turn) % 2] * 10)
    told = [note for note in calibrate("cpu", plan=replace(TINY, budget_s=100.0)).notes if note.startswith("doubtful: ")]
    assert len(told) == 1
    assert all(f"{name} (the middle half of 3" in told[0] for name in ("copy", "read", "float32"))


def test_short_calls_are_repeated_inside_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    inners: list[int] = []

    def sample(self: Any, run: Any, inner: int) -> float:
        inners.append(inner)
        return 1e-5

    monkeypatch.setattr(Microbenchmarks, "_sample", sample)
    Microbenchmarks(torch.device("cpu"), TINY)._seconds("x", lambda: None, 1.0)
    assert inners[0] == 1
    assert set(inners[1:]) == {200}
    assert len(inners) == 1 + TINY.repeats


def test_a_calibration_keeps_near_its_budget() -> None:
    plan = Plan(budget_s=0.5, buffer_bytes=1 << 20, edges=(16, 32, 64, 128, 256), launches=50, repeats=10_000)
    began = time.perf_counter()
    measured = calibrate("cpu", plan=plan)
    spent = time.perf_counter() - began
    assert measured.seconds_spent <= spent < 5


@pytest.mark.parametrize(
    ("cache", "memory", "expected"),
    [(None, 1 << 40, 256 << 20), (300 << 20, 1 << 40, 600 << 20), (300 << 20, 1 << 32, 256 << 20), (None, 1 << 20, 16 << 20)],
)
def test_buffers_are_larger_than_the_cache_and_small_in_the_memory(cache: int | None, memory: int, expected: int) -> None:
    host = Host(model="x", vendor="y", cores=2, flags=(), memory_bytes=memory, cache_bytes=cache)
    assert default_plan(torch.device("cpu"), host).buffer_bytes == expected


@pytest.mark.parametrize(
    "changes", [{"budget_s": 0.0}, {"buffer_bytes": 1}, {"edges": ()}, {"edges": (32, 16)}, {"edges": (17,)}, {"repeats": 0}]
)
def test_a_plan_that_measures_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"positive|bytes|edges|at least"):
        Plan(**{"buffer_bytes": 4096, "edges": (16,), **changes})


def test_a_device_that_is_not_here() -> None:
    with pytest.raises(UserError, match="tpu"):
        calibrate("tpu", plan=TINY)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_reaches_a_fair_part_of_its_datasheet() -> None:
    from inferometer.hardware.catalogue import catalogue

    measured = calibrate("cuda", budget_s=5.0)
    assert measured.host_to_device_bytes_s is not None
    assert measured.graph_kernel_s is not None
    device = catalogue().get(measured.slug or "")
    if device is None:
        pytest.skip(f"{measured.device_name} is not in the catalogue")
    assert device.memory_bandwidth_bytes_s is not None
    assert 0.6 < measured.copy_bandwidth_bytes_s / device.memory_bandwidth_bytes_s < 1.02
    for dtype, rate in measured.matmul_flop_s.items():
        assert 0.2 < rate / (device.matmul_flop_s(dtype) or 0) < 1.1, dtype
