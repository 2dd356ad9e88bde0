"""What NVIDIA's driver says of its GPUs: through NVML where its Python binding is installed, else through `nvidia-smi`, else nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from inferometer.hardware.reading import Reading

GpuReadings = dict[str, Reading[Any]]

# Sensor -> unit, in the order in which they are printed.
SENSORS: Mapping[str, str] = {
    "gpu_memory_used_bytes": "bytes",
    "gpu_memory_total_bytes": "bytes",
    "gpu_process_memory_bytes": "bytes",
    "gpu_processes": "processes",
    "gpu_energy_mj": "mJ",
    "gpu_power_w": "W",
    "gpu_power_limit_w": "W",
    "gpu_sm_clock_mhz": "MHz",
    "gpu_memory_clock_mhz": "MHz",
    "gpu_temperature_c": "C",
    "gpu_throttle_reasons": "names",
}

# NVML's nvmlClocksThrottleReason bits; nvidia-smi prints the same mask.
_THROTTLE_REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal (software)",
    0x040: "thermal (hardware)",
    0x080: "power brake",
    0x100: "display clocks",
}

_SMI_TIMEOUT_S = 20
_SMI_FIELDS = {
    "gpu_memory_used_bytes": "memory.used",
    "gpu_memory_total_bytes": "memory.total",
    "gpu_power_w": "power.draw",
    "gpu_power_limit_w": "power.limit",
    "gpu_sm_clock_mhz": "clocks.sm",
    "gpu_memory_clock_mhz": "clocks.mem",
    "gpu_temperature_c": "temperature.gpu",
    "gpu_throttle_reasons": "clocks_throttle_reasons.active",
}
_SMI_LACKS = {
    "gpu_process_memory_bytes": "memory of one process",
    "gpu_processes": "number of processes",
    "gpu_energy_mj": "energy counter",
}
_MIB = 1 << 20

Runner = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as its driver names it. `index` is the driver's, in PCI order, which is not torch's if CUDA_VISIBLE_DEVICES is set."""

    index: int
    name: str
    uuid: str | None
    memory_bytes: int | None
    driver: str | None


class Driver(Protocol):
    """A way to ask the driver."""

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs of the machine."""

    def read(self, index: int) -> GpuReadings:
        """Every sensor of `SENSORS`, absent ones with the reason. Never raises."""


class NoDriver:
    """There is no NVIDIA driver, or no way to ask it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def gpus(self) -> tuple[Gpu, ...]:
        return ()

    def read(self, index: int) -> GpuReadings:
        return {sensor: Reading(None, unit, self.reason) for sensor, unit in SENSORS.items()}


class NvmlDriver:
    """Through NVML: cheap enough to read between two measured steps, and the only way to the energy counter."""

    def __init__(self, nvml: Any) -> None:
        """`nvml` is the module `pynvml`; it is initialised here. Raises its NVMLError if there is no driver."""
        self._nvml = nvml
        nvml.nvmlInit()

    def gpus(self) -> tuple[Gpu, ...]:
        nvml = self._nvml
        driver = self._ask(lambda: _text(nvml.nvmlSystemGetDriverVersion()))[0]
        found = []
        for index in range(self._ask(nvml.nvmlDeviceGetCount)[0] or 0):
            handle = self._ask(partial(nvml.nvmlDeviceGetHandleByIndex, index))[0]
            if handle is None:
                continue
            name = self._ask(partial(nvml.nvmlDeviceGetName, handle))[0]
            uuid = self._ask(partial(nvml.nvmlDeviceGetUUID, handle))[0]
            memory = self._ask(partial(nvml.nvmlDeviceGetMemoryInfo, handle))[0]
            found.append(
                Gpu(
                    index=index,
                    name="unknown GPU" if name is None else _text(name),
                    uuid=None if uuid is None else _text(uuid),
                    memory_bytes=None if memory is None else int(memory.total),
                    driver=driver,
                )
            )
        return tuple(found)

    def read(self, index: int) -> GpuReadings:
        nvml = self._nvml
        handle, reason = self._ask(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
        if handle is None:
            return NoDriver(reason or "no such GPU").read(index)
        asks: dict[str, Callable[[], Any]] = {
            "gpu_memory_used_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            "gpu_memory_total_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            "gpu_process_memory_bytes": lambda: _of_this_process(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
            "gpu_processes": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
            "gpu_energy_mj": lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
            "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "gpu_power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            "gpu_sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "gpu_memory_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "gpu_temperature_c": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "gpu_throttle_reasons": lambda: throttle_names(int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
        }
        readings: GpuReadings = {}
        for sensor, unit in SENSORS.items():
            value, reason = self._ask(asks[sensor])
            readings[sensor] = Reading(value, unit, reason)
        return readings

    @staticmethod
    def _ask(question: Callable[[], Any]) -> tuple[Any, str | None]:
        """The answer, or None and why; NVML raises for each sensor that a card lacks, and its binding for each call that it lacks."""
        try:
            return question(), None
        except Exception as error:  # noqa: BLE001 - telemetry never ends a run
            return None, f"NVML: {error or type(error).__name__}"


class SmiDriver:
    """Through the command `nvidia-smi`: tens of milliseconds a reading, and no energy counter."""

    def __init__(self, run: Runner | None = None) -> None:
        self._run = run or _run_smi

    def gpus(self) -> tuple[Gpu, ...]:
        rows, _ = self._query(["index", "name", "uuid", "memory.total", "driver_version"], [])
        found = []
        for row in rows:
            if len(row) != 5 or not row[0].isdigit():
                continue
            mib = _float(row[3])
            memory = None if mib is None else round(mib * _MIB)
            found.append(Gpu(index=int(row[0]), name=row[1], uuid=_known(row[2]), memory_bytes=memory, driver=_known(row[4])))
        return tuple(found)

    def read(self, index: int) -> GpuReadings:
        rows, failure = self._query(list(_SMI_FIELDS.values()), ["-i", str(index)])
        if failure is None and (len(rows) != 1 or len(rows[0]) != len(_SMI_FIELDS)):
            failure = f"nvidia-smi printed no row for GPU {index}"
        if failure is not None:
            return NoDriver(failure).read(index)
        cells = dict(zip(_SMI_FIELDS, rows[0], strict=True))
        readings: GpuReadings = {}
        for sensor, unit in SENSORS.items():
            if sensor not in cells:
                readings[sensor] = Reading(None, unit, f"nvidia-smi tells no {_SMI_LACKS[sensor]}; install nvidia-ml-py")
                continue
            value = _smi_value(sensor, cells[sensor])
            readings[sensor] = Reading(value, unit, f"nvidia-smi says {cells[sensor]!r}" if value is None else None)
        return readings

    def _query(self, fields: list[str], arguments: list[str]) -> tuple[list[list[str]], str | None]:
        command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", *arguments]
        try:
            output = self._run(command)
        except FileNotFoundError:
            return [], "nvidia-smi is not installed"
        except (OSError, subprocess.SubprocessError) as error:
            return [], f"nvidia-smi failed ({type(error).__name__})"
        return [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()], None


def open_driver() -> Driver:
    """The best way to ask that there is here. Never raises."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        nvml = None
    if nvml is not None:
        try:
            return NvmlDriver(nvml)
        except Exception:  # noqa: BLE001 - no driver, or one of another version: the command may still answer
            pass
    smi = SmiDriver()
    if smi.gpus():
        return smi
    return NoDriver("no NVIDIA driver answers")


def visible_gpus(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA shows, in its order, given the value of CUDA_VISIBLE_DEVICES (None: not set).

    An entry that names no GPU ends the list, as CUDA has it. Right where cards are alike or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    if visible is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdigit():
            match = [gpu for gpu in gpus if gpu.index == int(entry)]
        else:
            match = [gpu for gpu in gpus if entry and gpu.uuid is not None and gpu.uuid.startswith(entry)]
        if len(match) != 1 or match[0] in chosen:
            break
        chosen.append(match[0])
    return tuple(chosen)


def throttle_names(mask: int) -> tuple[str, ...]:
    """What holds the clocks down, from the driver's bit mask; unknown bits in hexadecimal."""
    names = [name for bit, name in _THROTTLE_REASONS.items() if mask & bit]
    rest = mask & ~sum(_THROTTLE_REASONS)
    return (*names, *([f"{rest:#x}"] if rest else []))


def _of_this_process(processes: Sequence[Any]) -> int:
    """Bytes that the driver counts for this process. Raises LookupError where it knows it by another number, as from within a container."""
    for process in processes:
        if process.pid == os.getpid() and process.usedGpuMemory is not None:
            return int(process.usedGpuMemory)
    raise LookupError("this process is not among the GPU's by its number here")


def _smi_value(sensor: str, cell: str) -> float | tuple[str, ...] | None:
    if sensor == "gpu_throttle_reasons":
        try:
            return throttle_names(int(cell, 16))
        except ValueError:
            return None
    number = _float(cell)
    return None if number is None else number * (_MIB if sensor.endswith("_bytes") else 1)


def _run_smi(command: Sequence[str]) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True, env=environment)
    return done.stdout


def _float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _known(cell: str) -> str | None:
    return None if not cell or cell.startswith("[") else cell


def _text(value: str | bytes) -> str:
    # Bindings before 11.5 return bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
