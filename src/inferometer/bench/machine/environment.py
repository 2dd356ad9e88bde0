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
    if device.type != "cuda":
        return Telemetry()
    gpus, index = detect().gpus, device.index or 0
    return Telemetry(gpus[index].index if index < len(gpus) else None)


def environment(device: torch.device) -> dict[str, Any]:
    """What a record says of where it was taken; unknown is None."""
    cuda = device.type == "cuda"
    host = read_host()
    return {
        "inferometer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version_of("transformers"),
        "cuda": torch.version.cuda if cuda else None,
        "gpu": torch.cuda.get_device_name(device) if cuda else None,
        "gpu_memory_bytes": torch.cuda.get_device_properties(device).total_memory if cuda else None,
        # Not the kernel's release: builds of it can name who runs the machine.
        "platform": f"{platform.system()}-{platform.machine()}",
        "cpu": host.model,
        "cores": host.cores,
        "threads": torch.get_num_threads(),
        "sensors": telemetry(device).read().to_json(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
