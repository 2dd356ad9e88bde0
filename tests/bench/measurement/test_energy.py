"""Joules of a case's phases, from counters around each phase repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_backend import VOCABULARY, Clock, FakeBackend

from inferometer.bench.backends.hf_compile import HFCompileBackend
from inferometer.bench.backends.prompts import random_prompts
from inferometer.bench.backends.registry import entry
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.measurement.benchmark import open_backend, resolve
from inferometer.bench.measurement.energy import EnergyMeter, Holding
from inferometer.bench.records.case import Case
from inferometer.hardware.reading import Reading
from inferometer.hardware.telemetry import Snapshot
from inferometer.schedule.sampling import SamplingParams
from tiny_models import tiny_model


class Sensors:
    """A device that draws `watts` while the clock runs; it answers as long as `answers`, and wraps around at `range_j`."""

    def __init__(self, clock: Clock, *, watts: float = 100.0, gpu: bool = True, answers: int = 10**9, range_j: float = 1e9) -> None:
        self._clock, self._watts, self._gpu, self._answers, self._range_j = clock, watts, gpu, answers, range_j

    def read(self) -> Snapshot:
        self._answers -= 1
        joules = None if self._answers < 0 else self._watts * self._clock.now % self._range_j
        value = joules if joules is None or not self._gpu else 1000 * joules
        reading: Reading[float] = Reading(value, "J", None if value is not None else "the sensor is asleep")
        absent: Reading[float] = Reading(None, "J", "not there")
        readings = {"gpu_energy_mj": reading if self._gpu else absent, "cpu_energy_j": absent if self._gpu else reading}
        return Snapshot(self._clock.now, readings)


class HoldingBackend(FakeBackend):
    """As a backend that can run a step again at the same context."""

    held: tuple[int, bool] | None = None

    def hold(self, prompts: Any, params: SamplingParams, steps: int, *, filled: bool) -> None:
        self.held = steps, filled
        self.prefill(prompts, params)
        self.decode()

    def again(self) -> None:
        self.decode()


def case(**changes: Any) -> Case:
    values: dict[str, Any] = {"model": "m", "backend": "native", "dtype": "float32", "device": None, "batch_size": 2}
    return Case(**{**values, "sequence_length": 6, "decode_length": 5, **changes})


def measured(clock: Clock, backend: FakeBackend, asked: Case | None = None, **sensors: Any) -> dict[str, Any]:
    meter = EnergyMeter(Sensors(clock, **sensors), gpu=sensors.get("gpu", True), clock=clock)  # type: ignore[arg-type]
    asked = asked or case()
    meter.measure(asked, backend, random_prompts(0, asked.batch_size, asked.prompt_length, VOCABULARY))
    return meter.result


@pytest.mark.parametrize("gpu", [True, False])
def test_prefill_and_decode_apart_and_together(gpu: bool) -> None:
    clock = Clock()
    backend = HoldingBackend(clock=clock, prefill_s=[0.5], decode_s=[0.25])
    found = measured(clock, backend, gpu=gpu)
    assert found["prefill_j"] == pytest.approx(50)
    assert found["decode_j"] == pytest.approx(4 * 25)  # four steps after the first token
    assert found["prefill_j_per_token"] == pytest.approx(50 / (2 * 6))
    assert found["decode_j_per_token"] == pytest.approx(25 / 2)
    assert found["j_per_token"] == pytest.approx((50 + 100) / (2 * 5))
    assert "counter" in found["basis"]
    assert "4 prompts, 8 steps" in found["basis"]
    assert backend.held == (4, False)


@pytest.mark.parametrize("seconds", [0.003, 0.7, 5.0])
def test_each_phase_takes_two_seconds_or_more(seconds: float) -> None:
    clock = Clock()
    backend = HoldingBackend(clock=clock, prefill_s=[seconds], decode_s=[seconds])
    measured(clock, backend)
    phases = 2 * max(2.0, seconds) + 2 * seconds  # and each phase once before its measurement
    assert phases <= clock.now <= phases + 6 * seconds


def test_a_sensor_that_does_not_answer_costs_nothing_and_says_why() -> None:
    clock = Clock()
    found = measured(clock, HoldingBackend(clock=clock), answers=0)
    assert clock.now == 0
    assert found["basis"] == "none: the sensor is asleep"
    assert {found[name] for name in found if name != "basis"} == {None}


@pytest.mark.parametrize(("sensors", "reason"), [({"range_j": 120.0}, "backwards"), ({"range_j": 120.0, "gpu": False}, "wrapped"),
                                                 ({"answers": 4}, "asleep")])  # fmt: skip
def test_a_counter_that_breaks_leaves_the_phase_unknown(sensors: dict[str, Any], reason: str) -> None:
    clock = Clock()
    found = measured(clock, HoldingBackend(clock=clock, prefill_s=[0.5], decode_s=[0.25]), **sensors)
    assert reason in found["basis"]
    assert found["basis"].startswith("none: ")
    assert found["j_per_token"] is None


def test_a_backend_that_cannot_hold_a_step_has_whole_runs() -> None:
    clock = Clock()
    found = measured(clock, FakeBackend(clock=clock, prefill_s=[0.5], decode_s=[0.25]))
    assert found["prefill_j"] == pytest.approx(50)
    assert found["decode_j"] is found["decode_j_per_token"] is None
    assert found["j_per_token"] == pytest.approx((50 + 100) / (2 * 5))
    assert "decode has no energy of its own" in found["basis"]


def test_a_batch_that_shares_sweeps_has_energy_a_token_and_no_more() -> None:
    clock = Clock()
    found = measured(clock, HoldingBackend(clock=clock, prefill_s=[0.5], decode_s=[0.25], phased=False))
    assert found["prefill_j"] is found["decode_j"] is None
    assert found["j_per_token"] == pytest.approx(150 / 10)
    assert "they share sweeps" in found["basis"]


def test_a_forward_is_per_token_read_and_steps_alone_per_token_made() -> None:
    clock = Clock()
    forward = measured(clock, HoldingBackend(clock=clock, prefill_s=[0.5]), case(decode_length=None, forward_only=True))
    assert forward["j_per_token"] == forward["prefill_j_per_token"] == pytest.approx(50 / 12)
    assert forward["decode_j"] is None
    backend = HoldingBackend(clock=clock, prefill_s=[0.5], decode_s=[0.25])
    steps = measured(clock, backend, case(decode_only=True))
    assert (steps["prefill_j"], steps["decode_j"]) == (None, pytest.approx(5 * 25))
    assert steps["j_per_token"] == steps["decode_j_per_token"] == pytest.approx(25 / 2)
    assert backend.held == (5, True)
    one = measured(clock, HoldingBackend(clock=clock, prefill_s=[0.5]), case(decode_length=1))
    assert (one["decode_j"], one["j_per_token"]) == (None, pytest.approx(50 / 2))


def test_a_repeat_that_fails_costs_the_energy_and_not_the_case() -> None:
    def fail(what: str, rows: int) -> None:
        if what == "decode":
            raise torch.OutOfMemoryError("CUDA out of memory")

    clock = Clock()
    backend = HoldingBackend(clock=clock, prefill_s=[0.5], fail=fail)
    found = measured(clock, backend)
    assert found["basis"] == "none: repeating the phases failed: OutOfMemoryError: CUDA out of memory"
    assert backend.abandoned == 1


# What counts the steps is the same with a compiler, which each of its batches has to be traced for.
@pytest.mark.parametrize(("name", "steps"), [*((name, steps) for name in ("native", "hf") for steps in (1, 2, 5)), ("hf-compile", 5)])
@pytest.mark.parametrize("filled", [False, True])
def test_a_held_step_stays_where_it_is(tmp_path: Path, name: str, filled: bool, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again a token at the same context; and the batch can be dropped and run anew."""
    monkeypatch.setattr(HFCompileBackend, "compiler", "eager")
    asked = BenchRequest(
        model=str(tiny_model(tmp_path, "opt")), batch_sizes=(2,), weights="dummy", dtype="fp32", device="cpu", backends=(name,)
    )
    backend: Any = open_backend(entry(name), resolve(asked))
    assert isinstance(backend, Holding)
    prompts = random_prompts(0, 2, 20, 300)
    params = SamplingParams(max_new_tokens=steps + 1, ignore_eos=True)
    backend.prepare(2, 20 + steps + 1)
    backend.generate(prompts, params)
    plain = backend.finish()
    torch.manual_seed(0)
    backend.hold(prompts, params, steps, filled=filled)

    def position() -> tuple[int, Any]:
        if name == "native":
            return backend._batch.sequences[0].computed, backend._running.cache.keys[:, : 16 * 4].clone()
        return int(backend._batch.cache.get_seq_length()), torch.zeros(1, 1, 1)

    before = position()
    for _ in range(5):
        backend.again()
    after = position()
    assert after[0] == before[0] == 20 + (steps + 1) // 2
    # Only each row's newest place is written anew.
    assert int((after[1] != before[1]).flatten(2).any(2).any(0).sum()) <= 2
    backend.abandon()
    backend.prepare(2, 20 + steps + 1)
    backend.generate(prompts, params)
    assert backend.finish() == plain
    backend.close()
