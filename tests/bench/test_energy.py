"""Joules of a case's phases, from counters that are read at its marks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferometer.bench.energy import EnergyMeter
from inferometer.hardware.reading import Reading
from inferometer.hardware.telemetry import Snapshot


class Sensors:
    """Telemetry whose counter stands at each of `joules` in turn, `step_s` apart; None where it does not answer."""

    def __init__(self, joules: list[float | None], *, step_s: float, gpu: bool) -> None:
        self._joules: Iterator[tuple[int, float | None]] = iter(enumerate(joules))
        self._step_s = step_s
        self._gpu = gpu

    def read(self) -> Snapshot:
        place, joules = next(self._joules)
        value = joules if joules is None or not self._gpu else 1000 * joules
        reading: Reading[float] = Reading(value, "J", None if value is not None else "the sensor is asleep")
        absent: Reading[float] = Reading(None, "J", "not there")
        readings = {"gpu_energy_mj": reading if self._gpu else absent, "cpu_energy_j": absent if self._gpu else reading}
        return Snapshot(place * self._step_s, readings)


def measured(joules: list[float | None], *, step_s: float = 2.0, gpu: bool = True) -> EnergyMeter:
    meter = EnergyMeter(Sensors(joules, step_s=step_s, gpu=gpu), gpu=gpu)  # type: ignore[arg-type]
    for _ in range(len(joules) // 3):
        for _ in range(3):
            meter.mark()
        meter.take()
    return meter


@pytest.mark.parametrize("gpu", [True, False])
def test_phases_are_means_over_runs(gpu: bool) -> None:
    result = measured([0, 10, 40, 50, 64, 100], gpu=gpu).result(tokens=8)
    assert result["prefill_j"] == pytest.approx(12)
    assert result["decode_j"] == pytest.approx(33)
    assert result["j_per_token"] == pytest.approx(45 / 8)
    assert "counter" in result["basis"]


def test_unmeasured_runs_do_not_count() -> None:
    meter = EnergyMeter(Sensors([0, 500, 900, 1000, 1010, 1040], step_s=2, gpu=True), gpu=True)  # type: ignore[arg-type]
    for _ in range(3):
        meter.mark()
    meter.forget()
    for _ in range(3):
        meter.mark()
    meter.take()
    assert meter.result(tokens=10)["j_per_token"] == pytest.approx(4)


def test_what_is_too_short_for_the_counter_stays_unknown() -> None:
    result = measured([0, 10, 40], step_s=0.4).result(tokens=8)
    assert result["prefill_j"] is result["decode_j"] is result["j_per_token"] is None
    assert "too short" in result["basis"]


@pytest.mark.parametrize(
    ("joules", "gpu", "reason"), [([0, None, 40], True, "asleep"), ([5, 9, 2], True, "backwards"), ([5, 9, 2], False, "wrapped")]
)
def test_a_silent_or_broken_counter_gives_the_reason(joules: list[float | None], gpu: bool, reason: str) -> None:
    result = measured(joules, gpu=gpu).result(tokens=8)
    assert result["j_per_token"] is None
    assert reason in result["basis"]


def test_a_run_without_phases_has_energy_a_token_and_no_more() -> None:
    meter = EnergyMeter(Sensors([0, 10, 50, 80], step_s=2, gpu=True), gpu=True)  # type: ignore[arg-type]
    for _ in range(2):
        meter.mark()
        meter.mark()
        meter.take()
    result = meter.result(tokens=8)
    assert result["prefill_j"] is result["decode_j"] is None
    assert result["j_per_token"] == pytest.approx(20 / 8)
    assert "share sweeps" in result["basis"]
