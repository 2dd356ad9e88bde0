"""Where streamed layers lie while they do not run."""

from __future__ import annotations

import torch
from torch import Tensor

from inferometer.engine.residency.delivery import Delivery
from inferometer.engine.residency.disk_file import DiskFile, DiskSpace, Extent, extents
from inferometer.engine.residency.disk_reader import DiskReader
from inferometer.errors import UserError
from inferometer.hardware.host_memory import await_free_host_bytes
from inferometer.model.byte_size import gib
from inferometer.model.placement import LayerPlace, Placement
from inferometer.nn.host_buffer import HostBuffer

SPARE_BYTES = 256 << 20
"""Most memory of the host that stays free beside a layer that is to lie there: the system ends processes before all is taken."""


class LayerHomes:
    """The slots of the ring on `device`, and for each streamed layer what stays on the device, in the host's memory and on the disk.

    disk: for the file, where anything lies there. Raises torch.OutOfMemoryError where the slots have no room, DiskError where the file has
    none; the host's memory is taken layer by layer (`keep`).
    """

    def __init__(self, placement: Placement, device: torch.device, disk: DiskSpace | None = None) -> None:
        self._placement, self._device = placement, device
        self._slots = [torch.empty(placement.slot_bytes, dtype=torch.uint8, device=device) for _ in range(placement.ring_slots)]
        self._staying: dict[int, Tensor] = {}
        self._hosted: dict[int, HostBuffer] = {}
        self._extents: dict[int, Extent] = {}
        self.reader: DiskReader | None = None
        written = [layer for layer in placement.streamed_layers if placement.layers[layer].disk]
        if written:
            assert disk is not None, "what lies on the disk has a folder"
            runs, size = extents([placement.layers[layer].disk for layer in written])
            self._extents = dict(zip(written, runs, strict=True))
            self.reader = DiskReader(DiskFile(disk, size), max(run.size for run in runs), device, disk.buffer_bytes)

    @property
    def host_bytes(self) -> int:
        """The host's memory that is taken now."""
        buffers = 0 if self.reader is None else self.reader.host_bytes
        return buffers + sum(buffer.tensor.nbytes for buffer in self._hosted.values())

    def memory(self) -> list[Tensor | None]:
        """Of every layer the memory that it runs in, uint8 (bytes,), None for one that stays whole."""
        slot_of = self._placement.slot_of
        layers = enumerate(self._placement.layers)
        return [self._slots[slot_of[number]][: layer.bytes] if layer.streamed else None for number, layer in layers]

    def keep(self, layer: int) -> None:
        """Takes over a layer whose weights are in its slot. Raises UserError where the host or the disk fails."""
        place, slot = self._place(layer), self._slot(layer)
        from_disk = place.device + place.host
        self._staying[layer] = slot[: place.device].clone()
        needed = place.host + min(place.host, SPARE_BYTES)
        free = await_free_host_bytes(needed)
        if free < needed:
            raise UserError(
                f"layer {layer} takes {gib(place.host)} of the host's memory, of which {gib(free)} are free; lower --host-memory and give "
                "a folder with --disk DIR, or stream a smaller fraction"
            )
        self._hosted[layer] = HostBuffer(place.host, self._device)
        self._hosted[layer].tensor.copy_(slot[place.device : from_disk])
        if self.reader is not None and layer in self._extents:
            self.reader.write(self._extents[layer], slot[from_disk:])

    def delivery(self, layer: int) -> Delivery:
        """What makes the layer whole again in its slot."""
        return Delivery(self._slot(layer), self._staying[layer], self._hosted[layer].tensor, self._extents.get(layer))

    def close(self) -> None:
        """Lets the host's memory and the file go. No copy may be under way."""
        for buffer in self._hosted.values():
            buffer.close()
        self._hosted.clear()
        self._staying.clear()
        if self.reader is not None:
            self.reader.close()

    def _place(self, layer: int) -> LayerPlace:
        return self._placement.layers[layer]

    def _slot(self, layer: int) -> Tensor:
        return self._slots[self._placement.slot_of[layer]][: self._place(layer).bytes]
