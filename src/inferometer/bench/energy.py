"""Energy of a case's phases, from counters that the hardware keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import torch

from inferometer.bench.environment import telemetry
from inferometer.hardware.telemetry import Snapshot, Telemetry, gpu_energy_j

# NVIDIA's counter moves about every 100 ms (as seen by polling it); over a second in all, that is at most a tenth of the figure.
_SHORTEST_S: Final = 1.0


@dataclass(slots=True)
class EnergyMeter:
    """Adds up the joules of prefill and decode over a case's runs. Reading a sensor takes about a millisecond: never inside a time."""

    telemetry: Telemetry
    gpu: bool
    prefill: float | None = 0.0
    decode: float | None = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    mixed: float | None = 0.0
    mixed_s: float = 0.0
    runs: int = 0
    reason: str | None = None
    _snapshots: list[Snapshot] = field(default_factory=list)

    @classmethod
    def of(cls, device: torch.device) -> EnergyMeter:
        """For the device that a case runs on: a GPU's own counter, or the processor packages'."""
        return cls(telemetry(device), gpu=device.type == "cuda")

    def mark(self) -> None:
        """Before a run, between its phases, and after it."""
        self._snapshots.append(self.telemetry.read())

    def forget(self) -> None:
        """Drops the marks of a run that is not measured."""
        self._snapshots.clear()

    def take(self) -> None:
        """Adds the run whose marks were set: three, or two if prefill and decode shared its sweeps."""
        before, *between_phases, after = self._snapshots
        self._snapshots.clear()
        self.runs += 1
        if not between_phases:
            self.mixed = self._plus(self.mixed, before, after)
            self.mixed_s += after.at_s - before.at_s
            return
        (between,) = between_phases
        self.prefill, self.decode = self._plus(self.prefill, before, between), self._plus(self.decode, between, after)
        self.prefill_s += between.at_s - before.at_s
        self.decode_s += after.at_s - between.at_s

    def result(self, tokens: int) -> dict[str, Any]:
        """The record's `energy`, of one run, which generates (or, in a forward alone, reads) `tokens` in all. Unknown is None."""
        prefill = self.prefill if self.prefill_s >= _SHORTEST_S else None
        decode = self.decode if self.decode_s >= _SHORTEST_S else None
        whole = None
        if self.prefill is not None and self.decode is not None and self.mixed is not None:
            whole = self.prefill + self.decode + self.mixed
        if self.prefill_s + self.decode_s + self.mixed_s < _SHORTEST_S:
            whole = None
        basis = "the GPU's energy counter" if self.gpu else "the processor packages' energy counters"
        if self.reason is not None:
            basis = f"none: {self.reason}"
        elif self.mixed_s >= _SHORTEST_S:
            basis += "; prefill and decode share sweeps"
        elif prefill is None or decode is None:
            basis += f"; a phase of less than {_SHORTEST_S:g} s in all runs is too short for it"
        runs = max(self.runs, 1)
        return {
            "prefill_j": None if prefill is None else prefill / runs,
            "decode_j": None if decode is None else decode / runs,
            "j_per_token": None if whole is None else whole / runs / tokens,
            "basis": basis,
        }

    def _plus(self, total: float | None, first: Snapshot, last: Snapshot) -> float | None:
        used, reason = self._used(first, last)
        self.reason = self.reason or reason
        return None if used is None or total is None else total + used

    def _used(self, first: Snapshot, last: Snapshot) -> tuple[float | None, str | None]:
        """Joules between two marks, or None with the reason."""
        if self.gpu:
            reading = gpu_energy_j(first, last)
            return reading.value, reading.reason
        start, end = first.readings["cpu_energy_j"], last.readings["cpu_energy_j"]
        if start.value is None or end.value is None:
            return None, start.reason or end.reason
        if end.value < start.value:
            return None, "the processor's energy counter wrapped around"
        return end.value - start.value, None
