"""Where the bytes of a model's layers lie while it runs, and which slot of a ring on the device each layer that comes and goes runs in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

SLOTS = 2
"""Of the ring: one layer runs while the next one comes. A third would only help where layers differ in how long they run."""


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Bytes of one layer's weights by where they lie: of its flat buffer first those on the device, then the host's, then the disk's."""

    device: int
    host: int = 0
    disk: int = 0

    def __post_init__(self) -> None:
        if min(self.device, self.host, self.disk) < 0:
            raise ValueError(f"no place has fewer than 0 bytes of a layer: {self}")

    @property
    def bytes(self) -> int:
        """All of the layer."""
        return self.device + self.host + self.disk

    @property
    def streamed(self) -> int:
        """What comes to the device in every sweep."""
        return self.host + self.disk


@dataclass(frozen=True, slots=True)
class Placement:
    """The layers of a model in order.

    slots: of the ring, at least. A layer of which anything is streamed runs in a slot that holds it whole; always the same slot, so that
    its weights have fixed addresses.
    """

    layers: tuple[LayerPlace, ...]
    slots: int = SLOTS

    def __post_init__(self) -> None:
        if self.slots < 2:
            raise ValueError(f"a ring has at least 2 slots, not {self.slots}: a layer comes while another runs")

    @classmethod
    def resident(cls, layer_bytes: Sequence[int]) -> Placement:
        """All on the device."""
        return cls(tuple(LayerPlace(size) for size in layer_bytes))

    @classmethod
    def of(cls, layer_bytes: Sequence[int], *, streamed_bytes: int, disk_bytes: int = 0, slots: int = SLOTS) -> Placement:
        """Exactly so many bytes streamed, `disk_bytes` of them from the disk, the others from the host's memory.

        Whole layers, those on each side spread evenly among the others so that the link is never idle for long, and where the numbers do
        not come out a layer that lies on both. Raises ValueError where there are fewer bytes.
        """
        streamed = spread(layer_bytes, streamed_bytes)
        disk = spread(streamed, disk_bytes)
        parts = zip(layer_bytes, streamed, disk, strict=True)
        return cls(tuple(LayerPlace(size - comes, comes - read, read) for size, comes, read in parts), slots)

    @property
    def streamed_layers(self) -> tuple[int, ...]:
        """The numbers of the layers of which anything is streamed."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.streamed)

    @property
    def slot_of(self) -> dict[int, int]:
        """The slot that each streamed layer runs in."""
        streamed = self.streamed_layers
        return dict(zip(streamed, ring(len(streamed), self.slots), strict=True))

    @property
    def ring_slots(self) -> int:
        """Slots that are used: none without streamed layers."""
        return len(set(self.slot_of.values()))

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot: the largest layer of those that are streamed."""
        return max((layer.bytes for layer in self.layers if layer.streamed), default=0)

    @property
    def total_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def resident_bytes(self) -> int:
        """Bytes that stay on the device."""
        return sum(layer.device for layer in self.layers)

    @property
    def streamed_bytes(self) -> int:
        """Bytes that come to the device in every sweep."""
        return self.host_bytes + self.disk_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes of them that lie in the host's memory."""
        return sum(layer.host for layer in self.layers)

    @property
    def disk_bytes(self) -> int:
        """Bytes of them that lie on the disk."""
        return sum(layer.disk for layer in self.layers)

    @property
    def device_bytes(self) -> int:
        """What layers take on the device: those that stay, and the ring."""
        return self.resident_bytes + self.ring_slots * self.slot_bytes


def spread(sizes: Sequence[int], wanted: int) -> list[int]:
    """`wanted` bytes of things of these sizes: whole things as evenly spread as they can be, and what is missing from the first others.

    Raises ValueError unless `wanted` is from 0 to the sum of the sizes.
    """
    total = sum(sizes)
    if not 0 <= wanted <= total:
        raise ValueError(f"{wanted} of {total} bytes cannot be placed")
    taken, met, found = 0, 0, []
    for size in sizes:
        met += size
        whole = size if (taken + size) * total <= wanted * met else 0
        taken += whole
        found.append(whole)
    for number, size in enumerate(sizes):
        more = min(size - found[number], wanted - taken)
        found[number] += more
        taken += more
    return found


def share(total: int, fraction: float) -> int:
    """The whole number of bytes nearest to a fraction of the total."""
    return round(Fraction(fraction) * total)


def ring(layers: int, slots: int) -> tuple[int, ...]:
    """The slot of each of so many layers that pass through a ring of so many slots, sweep after sweep.

    In turn. Where the last would have the slot of the next sweep's first, which could then not come while it runs, it takes another one
    if the ring has a third.
    """
    found = [number % slots for number in range(layers)]
    if slots > 2 and layers > 1 and found[-1] == found[0]:
        found[-1] = 1
    return tuple(found)


def least_streamed(layer_bytes: Sequence[int], room_bytes: int, slots: int = SLOTS) -> int | None:
    """Bytes to stream so that the layers take at most `room_bytes` on the device: 0 where all fit, None where the ring alone does not.

    The fewest, where layers are alike.
    """
    total = sum(layer_bytes)
    if total <= room_bytes:
        return 0
    needed = total + slots * max(layer_bytes) - room_bytes
    return needed if needed <= total else None
