"""What a model may take of the device, the host's memory and a disk, and where its layers' bytes therefore lie."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from inferometer.engine.device import sixteen_bits
from inferometer.engine.residency.disk_file import DiskSpace
from inferometer.engine.residency.disk_reader import least_bytes
from inferometer.engine.residency.share import BesideWeights
from inferometer.errors import PointlessWarning, UserError, shown
from inferometer.hardware.host_memory import free_host_bytes
from inferometer.model.byte_size import gib
from inferometer.model.offload import Offload, read_offload
from inferometer.model.parameters import parameters
from inferometer.model.placement import Placement, least_streamed
from inferometer.model.spec import ModelSpec
from inferometer.nn.formats.layout import Layouts

AMPLE = 0.8
"""The part of the device's memory up to which weights leave enough beside them for the cache."""

PAGES_SHARE = 0.25
"""Of the host's memory that is kept for pages where weights may go to a disk instead."""


@dataclass(frozen=True, slots=True)
class Storage:
    """offload: what is asked to live elsewhere. host_bytes: most that weights, pages and what they pass through may take of the host's
    memory, None for what is free. folder: for what the host has no room for."""

    offload: Offload
    host_bytes: int | None = None
    folder: Path | None = None

    @classmethod
    def of(
        cls,
        offload: str | None = None,
        percent: str | Sequence[int] | None = None,
        host_memory: float | None = None,
        disk: str | Path | None = None,
    ) -> Storage:
        """Of the options' values, host_memory in GiB. Raises UserError for those that make no sense."""
        asked = read_offload(offload, percent)
        for option, value in (("--host-memory", host_memory), ("--disk", disk)):
            if value is not None and offload is None and percent is None:
                raise UserError(f"{option} goes with --offload or --percent: without them nothing leaves the device")
        if host_memory is not None and not positive(host_memory):
            raise UserError(f"--host-memory must be a number of GiB above 0, not {shown(host_memory)}")
        if host_memory is not None and disk is not None and host_memory * 2**30 < least_bytes():
            raise UserError(
                f"--host-memory {host_memory:g} has no room for the {least_bytes()} bytes through which weights come from --disk; raise it"
            )
        if disk is not None and not asked.weights:
            raise UserError("--disk holds weights, and all of them stay on the device; add --offload weights, or leave out --disk")
        if disk is not None and (not isinstance(disk, str | Path) or not str(disk)):
            raise UserError(f"--disk must be a folder, not {shown(disk)}")
        folder = None if disk is None else Path(disk)
        if folder is not None and folder.exists() and not folder.is_dir():
            raise UserError(f"--disk {folder}: is a file; give a folder")
        return cls(asked, None if host_memory is None else int(host_memory * 2**30), folder)

    @property
    def _option(self) -> str:
        """What asked for it."""
        return "--offload" if self.offload.disk is None else "--percent"

    @property
    def streams(self) -> bool:
        """Whether any weights come and go."""
        return self.offload.weights > 0

    @property
    def disk(self) -> DiskSpace | None:
        """What may lie on the disk, and how; None for nothing."""
        if self.folder is None:
            return None
        relief = "raise --host-memory" if self.offload.disk is None else "raise the second of --percent's numbers"
        return DiskSpace(self.folder, relief, self.host_bytes)

    def place(
        self, layer_bytes: Sequence[int], spec: ModelSpec, room: DeviceRoom, dtype: torch.dtype, layouts: Layouts | None = None
    ) -> Placement:
        """Where the layers of a model lie. layouts: of its matrices in few bits.

        Warns where nothing need be elsewhere. Raises UserError, with the remedy, where a limit does not hold.
        """
        beside = resident_beside_layers(spec, dtype, layouts)
        total = sum(layer_bytes)
        streaming = self.offload.place(layer_bytes, None, disk=True)
        if beside + streaming.device_bytes > room.bytes:
            raise UserError(_too_large(self.offload, spec, layer_bytes, beside, streaming, room, dtype))
        # A layer passes through on its way in, and later whatever is read from the disk.
        reserved = max(*layer_bytes, least_bytes())
        free = free_host_bytes() - (beside + streaming.device_bytes if room.of_host else 0)
        limit = free if self.host_bytes is None else self.host_bytes
        if self.folder is not None:
            limit = min(limit, free)
        # Without a disk a limit that was given is believed: a virtual machine may get more as it takes what it has. `LayerHomes` looks at
        # what is free before every layer.
        if self.offload.pages and self.offload.disk is None and self.folder is not None:
            limit -= int(limit * PAGES_SHARE)  # else weights would take all, though a disk is there for them
        placed = self.offload.place(layer_bytes, max(0, limit - reserved), disk=self.folder is not None)
        if beside + total <= AMPLE * room.bytes:
            message = (
                f"all weights of {spec.name} ({gib(beside + total)}) fit into the {gib(room.bytes)} that may be "
                f"taken of the device: offloading them is pointless and slow; leave out {self._option}"
            )
            warnings.warn(message, PointlessWarning, stacklevel=2)
        return placed


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """bytes: what may be taken of the device. capped: whether --gpu-memory says so. of_host: whether its memory is the host's."""

    bytes: int
    capped: bool
    of_host: bool

    @classmethod
    def on(cls, device: torch.device, gpu_memory: float | None, fraction: float) -> DeviceRoom:
        """What is free there now, or less. gpu_memory: in GiB."""
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            free = int(free - (1 - fraction) * total)
        else:
            free = int(free_host_bytes() * fraction)
        capped = gpu_memory is not None and int(gpu_memory * 2**30) < free
        return cls(int(gpu_memory * 2**30) if capped and gpu_memory is not None else free, capped, device.type == "cpu")


def resident_beside_layers(spec: ModelSpec, dtype: torch.dtype, layouts: Layouts | None = None) -> int:
    """Bytes of what is no layer's, and always on the device: embeddings, head, the last norm. layouts: of what is in few bits."""
    total = 0
    for parameter in parameters(spec):
        if parameter.name.startswith("layers."):
            continue
        layout = (layouts or {}).get(parameter.name)
        if layout is None:
            total += parameter.size * dtype.itemsize
        else:
            outputs, inputs = parameter.shape
            total += layout.empty(outputs, inputs, "meta").nbytes
    return total


def _too_large(
    offload: Offload,
    spec: ModelSpec,
    layer_bytes: Sequence[int],
    beside: int,
    placement: Placement,
    room: DeviceRoom,
    dtype: torch.dtype,
) -> str:
    limit = "--gpu-memory lets" if room.capped else "the device has"
    taken = f"--offload {offload.name}" if offload.disk is None else "--percent"
    words = f"{taken} leaves {gib(beside + placement.device_bytes)} of weights on the device, and {limit} {gib(room.bytes)}"
    left = room.bytes - beside
    share = BesideWeights.of(spec, dtype, offload, on_host=room.of_host).share(layer_bytes, left)
    if share is None:
        short = "do not fit" if least_streamed(layer_bytes, left) is None else "leave no memory for the KV cache"
        narrower = sixteen_bits(torch.device("cpu" if room.of_host else "cuda"), dtype)
        return f"{words}; even two layers at a time {short}: use --quantize int4, {narrower}or more memory"
    return f"{words}; {more_streamed(offload, share)}"


def more_streamed(offload: Offload, share: float) -> str:
    """The advice to stream that share of the layers, in the words of the option that says how much is."""
    if offload.disk is not None:
        return f"lower the first of --percent's numbers to {100 - ceil(100 * share - 1e-9)}"
    option = f"--offload {Offload(weights=share, pages=offload.pages).name}"
    return f"stream all of them ({option})" if share == 1 else f"stream at least {share:g} of them ({option})"


def positive(value: Any) -> bool:
    """Whether it is a number above 0, and a finite one."""
    number: bool = isinstance(value, Real) and not isinstance(value, bool)
    return number and bool(0 < value < inf)
