"""The machine and the software that a number was taken on, without names of users, hosts or folders."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import torch

from inferometer import __version__
from inferometer.hardware.catalogue import CPU, match_driver_name
from inferometer.hardware.detect import detect
from inferometer.hardware.host import read_host
from inferometer.hardware.host_state import read_governor
from inferometer.hardware.nvidia import Gpu
from inferometer.hardware.telemetry import Telemetry


def version_of(package: str) -> str | None:
    """The installed version of a package, without importing it; None if it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def device_name(device: torch.device) -> str | None:
    """What the driver calls the accelerator, or the processor's model name."""
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else read_host().model


def device_slug(device: torch.device) -> str | None:
    """The catalogue's name of the device; None for a card that it does not know."""
    if device.type == "cpu":
        return CPU
    return match_driver_name(torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory)


def telemetry(device: torch.device) -> Telemetry:
    """The sensors of this process, of the processor and, for a GPU, of that card."""
    gpu = _gpu(device)
    return Telemetry(None if gpu is None else gpu.index)


def _gpu(device: torch.device) -> Gpu | None:
    """The card as its driver names it; None for what is none, or which the driver does not tell."""
    if device.type != "cuda":
        return None
    gpus, index = detect().gpus, device.index or 0
    return gpus[index] if index < len(gpus) else None


def environment(device: torch.device) -> dict[str, Any]:
    """What a record says of where it was taken; unknown is None."""
    cuda = device.type == "cuda"
    host, gpu, sensors = read_host(), _gpu(device), telemetry(device).read()
    return {
        "inferometer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version_of("transformers"),
        "cuda": torch.version.cuda if cuda else None,
        "gpu": torch.cuda.get_device_name(device) if cuda else None,
        "gpu_memory_bytes": torch.cuda.get_device_properties(device).total_memory if cuda else None,
        "driver": None if gpu is None else gpu.driver,
        "gpu_power_limit_w": sensors.value("gpu_power_limit_w"),
        # Not the kernel's release: builds of it can name who runs the machine.
        "platform": f"{platform.system()}-{platform.machine()}",
        "cpu": host.model,
        "cores": host.cores,
        "governor": read_governor(),
        "threads": torch.get_num_threads(),
        "sensors": sensors.to_json(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
