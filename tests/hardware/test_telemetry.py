"""Sensors: what they say, and that one which is absent says why and never raises."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.hardware.nvidia import SENSORS, NoDriver, NvmlDriver, SmiDriver, throttle_names
from inferometer.hardware.rapl import Rapl
from inferometer.hardware.reading import Reading
from inferometer.hardware.telemetry import Snapshot, Telemetry, gpu_energy_j, process_memory


class Nvml:
    """A stand-in for the module `pynvml`: one card, some of whose sensors may be missing."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    pid = os.getpid()

    def __init__(self, missing: tuple[str, ...] = ()) -> None:
        self.energy = 1_000_000
        self.missing = missing

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "missing"):
            raise RuntimeError("Not Supported")
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.159"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index:
            raise RuntimeError("Invalid Argument")
        return 7

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "NVIDIA L4"

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return "GPU-1"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=23034 << 20, used=1 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=1, usedGpuMemory=1 << 30), SimpleNamespace(pid=self.pid, usedGpuMemory=5 << 20)]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        self.energy += 2500
        return self.energy

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 71_500

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:  # noqa: N802
        return 72_000

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return {1: 2040, 2: 6251}[kind]

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:  # noqa: N802
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return 0x4


def read(driver: Any, tmp_path: Path, gpu: int = 0) -> Snapshot:
    return Telemetry(gpu, driver=driver, powercap=tmp_path).read()


def test_every_sensor_of_nvml(tmp_path: Path) -> None:
    driver = NvmlDriver(Nvml())
    assert driver.gpus()[0].driver == "580.159"
    assert driver.gpus()[0].memory_bytes == 23034 << 20
    snapshot = read(driver, tmp_path)
    assert {sensor: snapshot.value(sensor) for sensor in SENSORS} == {
        "gpu_memory_used_bytes": 1 << 30,
        "gpu_memory_total_bytes": 23034 << 20,
        "gpu_process_memory_bytes": 5 << 20,
        "gpu_processes": 2,
        "gpu_energy_mj": 1_002_500,
        "gpu_power_w": 71.5,
        "gpu_power_limit_w": 72.0,
        "gpu_sm_clock_mhz": 2040,
        "gpu_memory_clock_mhz": 6251,
        "gpu_temperature_c": 61,
        "gpu_throttle_reasons": ("power cap",),
    }


def test_energy_between_two_moments(tmp_path: Path) -> None:
    driver = NvmlDriver(Nvml())
    before, after = read(driver, tmp_path), read(driver, tmp_path)
    assert gpu_energy_j(before, after) == Reading(2.5, "J")
    assert "backwards" in (gpu_energy_j(after, before).reason or "")


def test_a_process_that_the_driver_knows_by_another_number_has_no_memory_of_its_own(tmp_path: Path) -> None:
    nvml = Nvml()
    nvml.pid = 2**30
    reading = read(NvmlDriver(nvml), tmp_path).readings["gpu_process_memory_bytes"]
    assert reading.value is None
    assert "not among" in str(reading.reason)


@pytest.mark.parametrize("missing", ["nvmlDeviceGetTotalEnergyConsumption", "NVML_CLOCK_SM"])
def test_a_sensor_that_a_card_or_binding_lacks_is_null_with_the_reason(missing: str, tmp_path: Path) -> None:
    nvml = Nvml((missing,))
    if not missing.startswith("nvml"):
        nvml = SimpleNamespace(**{name: getattr(nvml, name) for name in dir(nvml) if not name.startswith("_") and name != missing})  # type: ignore[assignment]
    snapshot = read(NvmlDriver(nvml), tmp_path)
    sensor = "gpu_energy_mj" if missing.startswith("nvml") else "gpu_sm_clock_mhz"
    assert snapshot.value(sensor) is None
    assert (snapshot.readings[sensor].reason or "").startswith("NVML: ")
    assert snapshot.value("gpu_power_w") == 71.5
    if sensor == "gpu_energy_mj":
        assert gpu_energy_j(snapshot, snapshot) == Reading(None, "J", "NVML: Not Supported")


def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    snapshot = read(NvmlDriver(Nvml()), tmp_path, gpu=3)
    assert all(snapshot.value(sensor) is None for sensor in SENSORS)


def test_nvidia_smi_gives_all_but_energy(tmp_path: Path) -> None:
    commands: list[Sequence[str]] = []

    def smi(command: Sequence[str]) -> str:
        commands.append(command)
        return "1024, 23034, 71.50, 72.00, 2040, 6251, 61, 0x0000000000000024\n"

    snapshot = read(SmiDriver(smi), tmp_path)
    assert commands[0][-2:] == ["-i", "0"]
    assert snapshot.value("gpu_memory_used_bytes") == 1 << 30
    assert snapshot.value("gpu_power_w") == 71.5
    assert snapshot.value("gpu_throttle_reasons") == ("power cap", "thermal (software)")
    assert "nvidia-ml-py" in (snapshot.readings["gpu_energy_mj"].reason or "")


def test_fields_that_nvidia_smi_does_not_know(tmp_path: Path) -> None:
    snapshot = read(SmiDriver(lambda command: "[N/A], 23034, [Not Supported], 72.00, 2040, 6251, ERR!, [N/A]\n"), tmp_path)
    assert snapshot.value("gpu_power_limit_w") == 72
    for sensor in ("gpu_memory_used_bytes", "gpu_power_w", "gpu_temperature_c", "gpu_throttle_reasons"):
        assert snapshot.value(sensor) is None
        assert snapshot.readings[sensor].reason


@pytest.mark.parametrize("output", ["", "one, two\n", "a\nb\n"])
def test_rows_that_nvidia_smi_does_not_print(output: str, tmp_path: Path) -> None:
    snapshot = read(SmiDriver(lambda command: output), tmp_path)
    assert all(snapshot.readings[sensor].reason == "nvidia-smi printed no row for GPU 0" for sensor in SENSORS)


def test_a_failing_nvidia_smi_is_a_reason(tmp_path: Path) -> None:
    def smi(command: Sequence[str]) -> str:
        raise subprocess.CalledProcessError(9, command)

    snapshot = read(SmiDriver(smi), tmp_path)
    assert all(snapshot.readings[sensor].reason == "nvidia-smi failed (CalledProcessError)" for sensor in SENSORS)


def test_without_a_gpu_every_gpu_sensor_says_so(tmp_path: Path) -> None:
    snapshot = Telemetry(powercap=tmp_path).read()
    assert all(snapshot.readings[sensor] == Reading(None, unit, "no GPU was asked for") for sensor, unit in SENSORS.items())
    assert read(NoDriver("why"), tmp_path).readings["gpu_power_w"].reason == "why"


@given(st.integers(min_value=0, max_value=0xFFFF))
def test_throttle_names_cover_every_bit(mask: int) -> None:
    names = throttle_names(mask)
    assert len(names) == (mask & 0x1FF).bit_count() + (mask >> 9 > 0)


def test_memory_of_the_process(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n")
    assert process_memory(status) == {"process_rss_bytes": Reading(1 << 20, "bytes"), "process_peak_rss_bytes": Reading(2 << 20, "bytes")}
    status.write_text("Name:\tx\nVmRSS:\tmany kB\n")
    assert process_memory(status)["process_rss_bytes"].value is None
    assert "no VmHWM" in (process_memory(status)["process_peak_rss_bytes"].reason or "")
    assert "No such file" in (process_memory(tmp_path / "absent")["process_rss_bytes"].reason or "")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_of_this_process_grows_with_it() -> None:
    before = process_memory()["process_rss_bytes"].value
    with mmap.mmap(-1, 64 << 20) as held:  # pages that nobody had before
        for at in range(0, len(held), mmap.PAGESIZE):
            held[at] = 1
        after = process_memory()["process_rss_bytes"].value
    assert before is not None
    assert after is not None
    assert after - before > 32 << 20


def zone(folder: Path, name: str, energy: int | None, kind: str = "package-0", limit: int | None = 1_000_000) -> Path:
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "name").write_text(f"{kind}\n")
    if energy is not None:
        (path / "energy_uj").write_text(f"{energy}\n")
    if limit is not None:
        (path / "max_energy_range_uj").write_text(f"{limit}\n")
    return path


def test_rapl_adds_the_packages_and_nothing_inside_them(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 100)
    zone(tmp_path, "intel-rapl:0:0", 50, "core")
    zone(tmp_path, "intel-rapl:1", 200, "package-1")
    zone(tmp_path, "intel-rapl:2", 200, "psys")
    rapl = Rapl(tmp_path)
    assert rapl.read() == Reading(0.0, "J")
    zone(tmp_path, "intel-rapl:0", 600_100)
    zone(tmp_path, "intel-rapl:1", 400_200, "package-1")
    zone(tmp_path, "intel-rapl:0:0", 900_000, "core")
    zone(tmp_path, "intel-rapl:2", 900_000, "psys")
    assert rapl.read().value == pytest.approx(1.0)


def test_rapl_counters_wrap_around(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 900_000)
    rapl = Rapl(tmp_path)
    zone(tmp_path, "intel-rapl:0", 150_000)
    assert rapl.read().value == pytest.approx(0.25)


def test_rapl_says_why_it_is_absent(tmp_path: Path) -> None:
    assert "no RAPL counters" in (Rapl(tmp_path / "nothing").read().reason or "")
    zone(tmp_path, "intel-rapl:0", None)
    assert "not readable" in (Rapl(tmp_path).read().reason or "")
    zone(tmp_path, "intel-rapl:0", 500, limit=None)
    (tmp_path / "intel-rapl:0/max_energy_range_uj").unlink()
    rapl = Rapl(tmp_path)
    zone(tmp_path, "intel-rapl:0", 400, limit=None)
    assert "wrapped" in (rapl.read().reason or "")


def test_a_reading_has_a_value_or_a_reason() -> None:
    with pytest.raises(ValueError, match="a value or the reason"):
        Reading(None, "W")
    with pytest.raises(ValueError, match="a value or the reason"):
        Reading(1.0, "W", "but")
    assert Reading(("a", "b"), "names").to_json() == {"value": ["a", "b"], "unit": "names", "reason": None}
    assert Reading(0.0, "W").value == 0
