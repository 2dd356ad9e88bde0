"""What this machine is: its CPU, its GPUs, which of them the catalogue knows, and a fingerprint under which measurements are kept."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass

from inferometer.errors import UserError
from inferometer.hardware.catalogue import CPU, match_driver_name
from inferometer.hardware.device import DeviceSpec
from inferometer.hardware.host import Host, read_host
from inferometer.hardware.nvidia import Driver, Gpu, open_driver, visible_gpus

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The present machine. `gpus` are those that CUDA shows to this process, in CUDA's order."""

    host: Host
    gpus: tuple[Gpu, ...]

    def slug(self, index: int) -> str | None:
        """The catalogue's slug of the GPU that CUDA calls `index`; None for a card that it does not know."""
        gpu = self.gpus[index]
        return match_driver_name(gpu.name, gpu.memory_bytes)

    @property
    def fingerprint(self) -> str:
        """The same for the same hardware and driver, whatever the host is called and whichever of several equal cards it holds."""
        facts = {
            "cpu": self.host.model,
            "flags": sorted(self.host.flags),
            "cores": self.host.cores,
            # Kernels reserve some MiB more or less; the machine is the same.
            "memory_gib": None if self.host.memory_bytes is None else round(self.host.memory_bytes / _GIB),
            "gpus": [[gpu.name, None if gpu.memory_bytes is None else round(gpu.memory_bytes / _GIB)] for gpu in self.gpus],
            "driver": sorted({gpu.driver for gpu in self.gpus if gpu.driver is not None}),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def detect(host: Host | None = None, driver: Driver | None = None) -> Machine:
    """What is here. `host` and `driver` stand in for this machine's own. Never raises."""
    found = (driver or open_driver()).gpus()
    return Machine(host=host or read_host(), gpus=visible_gpus(found, os.environ.get("CUDA_VISIBLE_DEVICES")))


def cpu_device(host: Host | None = None) -> DeviceSpec:
    """This machine's CPU as a device. It has no datasheet: bandwidth and rates are None until they are measured.

    Raises UserError if the system does not tell how much memory there is.
    """
    host = host or read_host()
    if host.memory_bytes is None:
        raise UserError("cpu: this system does not tell its memory size; describe the machine in a TOML file and name that instead")
    return DeviceSpec(
        slug=CPU,
        name=host.model,
        vendor=host.vendor,
        architecture=", ".join(host.flags) or "no vector instructions known",
        compute_capability=None,
        memory_bytes=host.memory_bytes,
        memory_bandwidth_bytes_s=None,
        multiprocessors=host.cores,
        l2_bytes=host.cache_bytes if (host.cache_bytes or 0) < host.memory_bytes else None,
        boost_clock_hz=None,
        power_limit_w=None,
        source="this machine (/proc, /sys)",
        note="datasheet unknown; `inferometer devices --calibrate` measures bandwidth and rates",
    )
