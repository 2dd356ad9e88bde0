"""What the sensors say while a program runs: memory of the process, energy, load, clocks, power, temperature. Absent ones say why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inferometer.hardware.host_state import read_load
from inferometer.hardware.nvidia import Driver, NoDriver, open_driver
from inferometer.hardware.rapl import POWERCAP, Rapl
from inferometer.hardware.reading import Reading

_STATUS_KEYS = {"process_rss_bytes": "VmRSS", "process_peak_rss_bytes": "VmHWM"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All sensors at one moment. `at_s` is on the clock of time.perf_counter()."""

    at_s: float
    readings: Mapping[str, Reading[Any]]

    def value(self, sensor: str) -> Any:
        """The sensor's value, None if it is absent."""
        return self.readings[sensor].value

    def to_json(self) -> dict[str, object]:
        """Sensor -> `{"value", "unit", "reason"}`."""
        return {sensor: reading.to_json() for sensor, reading in self.readings.items()}


class Telemetry:
    """The sensors of this process, of the CPU, and of one GPU. Opening and reading never raise."""

    def __init__(
        self, gpu: int | None = None, *, driver: Driver | None = None, status: Path = Path("/proc/self/status"), powercap: Path = POWERCAP
    ) -> None:
        """`gpu` is the driver's index (`Gpu.index`); None leaves the GPU out. The rest stand in for the system's."""
        self._gpu = gpu
        self._driver = NoDriver("no GPU was asked for") if gpu is None else driver or open_driver()
        self._status = status
        self._rapl = Rapl(powercap)

    def read(self) -> Snapshot:
        """Every sensor now."""
        at_s = time.perf_counter()
        readings: dict[str, Reading[Any]] = {**process_memory(self._status), "cpu_energy_j": self._rapl.read(), "host_load": read_load()}
        readings |= self._driver.read(self._gpu if self._gpu is not None else 0)
        return Snapshot(at_s, MappingProxyType(readings))


def gpu_energy_j(before: Snapshot, after: Snapshot) -> Reading[float]:
    """Joules that the GPU used between two snapshots, by its own counter; None with the reason if it has none or it was reset."""
    first, last = before.readings["gpu_energy_mj"], after.readings["gpu_energy_mj"]
    if first.value is None or last.value is None:
        return Reading(None, "J", first.reason or last.reason)
    if last.value < first.value:
        return Reading(None, "J", "the GPU's energy counter went backwards: its driver was reloaded")
    return Reading((last.value - first.value) / 1e3, "J")


def process_memory(status: Path = Path("/proc/self/status")) -> dict[str, Reading[int]]:
    """Resident bytes of a process now and at its peak, from its /proc status file."""
    try:
        lines = status.read_text("utf-8", errors="replace").splitlines()
    except OSError as error:
        return {sensor: Reading(None, "bytes", f"{status}: {error.strerror}") for sensor in _STATUS_KEYS}
    found = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    readings: dict[str, Reading[int]] = {}
    for sensor, key in _STATUS_KEYS.items():
        parts = found.get(key, [])
        if len(parts) == 2 and parts[0].isdigit() and parts[1] == "kB":
            readings[sensor] = Reading(int(parts[0]) * 1024, "bytes")
        else:
            readings[sensor] = Reading(None, "bytes", f"{status} has no {key}")
    return readings
