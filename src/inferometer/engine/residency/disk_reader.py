"""Reads layers from the disk into slots, through a few buffers of pinned memory."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from inferometer.engine.residency.disk_file import BLOCK_BYTES, DiskFile, Extent
from inferometer.engine.residency.link import Link, Mark
from inferometer.nn.host_buffer import HostBuffer

BUFFERS: Final = 3
"""One is read into, one is copied from, and one lets neither wait for the other."""
BUFFER_BYTES: Final = 32 << 20
"""Enough for a disk to be read at its full rate one read at a time."""


def buffer_bytes(largest: int, most: int | None = None) -> int:
    """Bytes of each buffer, where no run of bytes is larger: together no more than that run, and than `most`, if blocks let it."""
    together = largest if most is None else min(largest, most)
    return max(BLOCK_BYTES, min(BUFFER_BYTES, together // BUFFERS // BLOCK_BYTES * BLOCK_BYTES))


def least_bytes() -> int:
    """What buffers take in any case."""
    return BUFFERS * BLOCK_BYTES


class DiskReader:
    """Of one file. largest: bytes of the largest extent. most: of all buffers, None for what reads fastest."""

    def __init__(self, file: DiskFile, largest: int, device: torch.device, most: int | None = None) -> None:
        self._file = file
        self._size = buffer_bytes(largest, most)
        self._buffers = [HostBuffer(self._size, device) for _ in range(BUFFERS)]
        self._copied: list[Mark | None] = [None] * BUFFERS
        self._turn = 0

    @property
    def host_bytes(self) -> int:
        """Memory of the host that the buffers take."""
        return BUFFERS * self._size

    def read(self, extent: Extent, target: Tensor, link: Link) -> None:
        """Reads an extent and queues its copies into `target`, uint8 (extent.size,). Raises DiskError."""
        for start in range(0, extent.size, self._size):
            size = min(self._size, extent.size - start)
            turn, self._turn = self._turn, (self._turn + 1) % BUFFERS
            buffer, before = self._buffers[turn], self._copied[turn]
            if before is not None:
                before.wait()
            self._file.read(buffer.view[: -(-size // BLOCK_BYTES) * BLOCK_BYTES], extent.offset + start)
            link.copy(target[start : start + size], buffer.tensor[:size])
            self._copied[turn] = link.copied()

    def write(self, extent: Extent, source: Tensor) -> None:
        """Puts `source`, uint8 (extent.size,) on the device or the host, into the file. Raises DiskError."""
        buffer = self._buffers[0]
        for start in range(0, extent.size, self._size):
            size = min(self._size, extent.size - start)
            buffer.tensor[:size].copy_(source[start : start + size])
            self._file.write(buffer.view[: -(-size // BLOCK_BYTES) * BLOCK_BYTES], extent.offset + start)

    def close(self) -> None:
        """Lets the buffers and the file go. No copy may be under way."""
        for buffer in self._buffers:
            buffer.close()
        self._file.close()
