"""Energy of a case's phases, from counters that the hardware keeps, around each phase repeated until they can tell it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import torch

from inferometer.bench.backends.backend import Backend, Prompts
from inferometer.bench.machine.environment import telemetry
from inferometer.bench.records.case import Case
from inferometer.bench.records.failures import evidence_of
from inferometer.hardware.telemetry import Snapshot, Telemetry, gpu_energy_j
from inferometer.schedule.sampling import SamplingParams

# NVIDIA's counter moves about every 100 ms (as seen by polling it): over this long, it is off by a twentieth at most.
LEAST_S: Final = 2.0


@runtime_checkable
class Holding(Protocol):
    """A backend that can run a decode step again and again at the same context."""

    def hold(self, prompts: Prompts, params: SamplingParams, steps: int, *, filled: bool) -> None:
        """Brings a batch to the middle of `steps` steps after its prompts, which with `filled` are random instead of computed."""
        ...

    def again(self) -> None:
        """The step at that context, once more."""
        ...


@dataclass(frozen=True, slots=True)
class _Repeated:
    """joules: of all repeats, None with the reason."""

    joules: float | None
    repeats: int
    reason: str | None

    @property
    def each(self) -> float | None:
        """Joules of one repeat; None where the counter told none."""
        return None if self.joules is None else self.joules / self.repeats


class EnergyMeter:
    """Measures the phases of a case once it has been timed. Nothing is subtracted: what the device draws when idle is part of it."""

    def __init__(
        self,
        sensors: Telemetry,
        *,
        gpu: bool,
        least_s: float = LEAST_S,
        clock: Callable[[], float] = time.perf_counter,
        others: Sequence[Telemetry] = (),
    ) -> None:
        """others: of further GPUs that a case runs on, whose energy is added."""
        self._sensors = (sensors, *others)
        self._gpu = gpu
        self._least_s = least_s
        self._clock = clock
        self.result: dict[str, Any] = self._unknown("it was not measured")

    @classmethod
    def of(cls, device: torch.device, devices: int = 1) -> EnergyMeter:
        """For the device that a case runs on, and those behind it up to `devices`: the GPUs' own counters, or the processor packages'."""
        gpu, first = device.type == "cuda", device.index or 0
        others = [telemetry(torch.device("cuda", first + place)) for place in range(1, devices)] if gpu else []
        return cls(telemetry(device), gpu=gpu, others=others)

    def measure(self, case: Case, backend: Backend, prompts: Prompts) -> None:
        """Repeats each phase for two seconds or more, and sets `result`, the record's `energy`. Unknown is None; raises nothing.

        prefill_j: of one prefill (or forward). decode_j: of all decode steps of a run, from one step repeated at the context in their
        middle. prefill_j_per_token: a prompt token. decode_j_per_token: a decoded token. j_per_token: a generated token (of a forward, a
        token read), prefill included where there is one.
        """
        first = self._read()
        _, reason = self._used(first, first)
        if reason is not None:
            self.result = self._unknown(reason)
            return
        try:
            self.result = self._phases(case, backend, prompts)
        except Exception as error:  # noqa: BLE001  (a case that was timed keeps its times, whatever its repeats run into)
            self.result = self._unknown(f"repeating the phases failed: {evidence_of(error)}")
            backend.abandon()

    def _phases(self, case: Case, backend: Backend, prompts: Prompts) -> dict[str, Any]:
        params = case.sampling_params()
        rows = case.batch_size

        def whole() -> None:
            backend.generate(prompts, params)
            backend.finish()

        def prefill() -> None:
            backend.prefill(prompts, params)
            backend.finish()

        if case.forward_only:
            forward = self._repeat(lambda: _ignore(backend.forward(prompts, loss=case.loss)), backend)
            return self._result(rows, case, prefill=forward)
        if not backend.phased and not case.decode_only:
            return self._result(rows, case, whole=self._repeat(whole, backend))
        prefilled = None if case.decode_only else self._repeat(prefill, backend)
        if not case.steps:
            return self._result(rows, case, prefill=prefilled)
        if not isinstance(backend, Holding):
            return self._result(rows, case, prefill=prefilled, whole=self._repeat(whole, backend))
        backend.hold(prompts, params, case.steps, filled=case.decode_only)
        step = self._repeat(backend.again, backend)
        backend.abandon()
        return self._result(rows, case, prefill=prefilled, step=step)

    def _result(
        self, rows: int, case: Case, *, prefill: _Repeated | None = None, step: _Repeated | None = None, whole: _Repeated | None = None
    ) -> dict[str, Any]:
        prefill_j = None if prefill is None else prefill.each
        step_j = None if step is None else step.each
        decode_j = None if step_j is None else step_j * case.steps
        if whole is not None:
            total = whole.each
        else:
            parts = [joules for phase, joules in ((prefill, prefill_j), (step, decode_j)) if phase is not None]
            total = sum(joules for joules in parts if joules is not None) if None not in parts else None
        generated = case.prompt_length if case.forward_only else case.steps + (not case.decode_only)
        done = [f"{each.repeats} {what}" for each, what in ((prefill, "prompts" if not case.forward_only else "forwards"),
                (step, "steps"), (whole, "whole runs")) if each is not None]  # fmt: skip
        reasons = [each.reason for each in (prefill, step, whole) if each is not None and each.reason is not None]
        basis = f"{self._counter} over at least {self._least_s:g} s each: {', '.join(done)} of the batch"
        if whole is not None:
            basis += "; decode has no energy of its own" + ("" if prefill is not None else ", nor has prefill: they share sweeps")
        return {
            "prefill_j": prefill_j,
            "decode_j": decode_j,
            "j_per_token": None if total is None else total / (rows * generated),
            "prefill_j_per_token": None if prefill_j is None else prefill_j / (rows * case.prompt_length),
            "decode_j_per_token": None if step_j is None else step_j / rows,
            "basis": f"none: {reasons[0]}" if reasons else basis,
        }

    def _repeat(self, action: Callable[[], None], backend: Backend) -> _Repeated:
        action()  # what a first time costs alone
        backend.synchronise()
        first, begin, repeats = self._read(), self._clock(), 0
        while not repeats or self._clock() - begin < self._least_s:
            action()
            repeats += 1
        backend.synchronise()
        joules, reason = self._used(first, self._read())
        return _Repeated(joules, repeats, reason)

    def _unknown(self, reason: str) -> dict[str, Any]:
        names = ("prefill_j", "decode_j", "j_per_token", "prefill_j_per_token", "decode_j_per_token")
        return {**dict.fromkeys(names), "basis": f"none: {reason}"}

    @property
    def _counter(self) -> str:
        if len(self._sensors) > 1:
            return f"the {len(self._sensors)} GPUs' energy counters"
        return "the GPU's energy counter" if self._gpu else "the processor packages' energy counters"

    def _read(self) -> list[Snapshot]:
        return [sensors.read() for sensors in self._sensors]

    def _used(self, first: Sequence[Snapshot], last: Sequence[Snapshot]) -> tuple[float | None, str | None]:
        """Joules between two readings, or None with the reason."""
        if self._gpu:
            readings = [gpu_energy_j(before, after) for before, after in zip(first, last, strict=True)]
            known = [reading.value for reading in readings if reading.value is not None]
            lacking = next((reading.reason for reading in readings if reading.value is None), None)
            return (sum(known), None) if len(known) == len(readings) else (None, lacking)
        start, end = first[0].readings["cpu_energy_j"], last[0].readings["cpu_energy_j"]
        if start.value is None or end.value is None:
            return None, start.reason or end.reason
        if end.value < start.value:
            return None, "the processor's energy counter wrapped around"
        return end.value - start.value, None


def _ignore(value: object) -> None:
    """Of a forward only its work is wanted."""
