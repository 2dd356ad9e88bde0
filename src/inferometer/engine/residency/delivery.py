"""What makes a layer whole in its slot."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from inferometer.engine.residency.disk_file import Extent


@dataclass(frozen=True, slots=True)
class Delivery:
    """A layer's bytes by where they lie, in the order in which they follow each other in its slot, all uint8.

    slot: the memory on the device that the layer runs in, of its length. device, host: what stays there and in the host's memory, may be
    empty. disk: where the rest lies, None for nowhere.
    """

    slot: Tensor
    device: Tensor
    host: Tensor
    disk: Extent | None = None

    @property
    def host_slot(self) -> Tensor:
        """Where the host's part goes, uint8 (bytes,)."""
        return self.slot[self.device.numel() : self.device.numel() + self.host.numel()]

    @property
    def disk_slot(self) -> Tensor:
        """Where the disk's part goes, uint8 (bytes,)."""
        return self.slot[self.device.numel() + self.host.numel() :]

    @property
    def link_bytes(self) -> int:
        """What comes over the link."""
        return self.slot.numel() - self.device.numel()
