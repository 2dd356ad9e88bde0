"""Residency of layers that come to the device for as long as they run."""

from __future__ import annotations

from typing import Final

from inferometer.engine.owner import Owner
from inferometer.engine.residency.courier import Arrival, Courier
from inferometer.engine.residency.homes import LayerHomes
from inferometer.model.placement import Placement
from inferometer.nn.residency import Residency

LAUNCHED_BYTES: Final = 40 << 20
"""What a link of 50 GB/s brings while the host launches a layer kernel by kernel: 0.86 ms of opt-6.7b's beside an H200, whose decode step
with 3 % of the weights streamed took 27.5 ms so and 7.3 recorded, of 7.0 that the link needs."""


class StreamedLayers:
    """Every streamed layer comes into its slot of the ring as soon as the layer that ran there before has been launched for the last time,
    so that copies never wait but for a slot; after the last layer the next sweep's first ones come.

    Layers that stay cost nothing. Sweeps may end anywhere: one that begins with another layer than the next in turn begins anew.

    brought_bytes: what has been asked to come over the link so far.
    """

    def __init__(self, placement: Placement, homes: LayerHomes, courier: Courier) -> None:
        self.placement = placement
        self.brought_bytes = 0
        self._homes, self._courier = homes, courier
        self._order = placement.streamed_layers
        self._slot_of = placement.slot_of
        self._place = {layer: place for place, layer in enumerate(self._order)}
        self._taken: set[int] = set()
        self._arrivals: dict[int, Arrival] = {}
        self._next = 0
        self._open = True
        self._owner = Owner()

    @property
    def host_bytes(self) -> int:
        """The host's memory that the layers take, and what they pass through."""
        return self._homes.host_bytes

    def acquire(self, layer: int) -> None:
        """See nn.residency.Residency. Raises DiskError where the layer's file was not read."""
        if layer not in self._place:
            return
        if not self._open:
            raise RuntimeError("the weights were let go when the model was closed")
        if self._owner.forked:  # where nobody would bring them
            raise RuntimeError("the weights come to the process that loaded them, of which this is a fork; make an LLM in each process")
        arrival = self._arrivals.pop(layer, None)
        if arrival is None:
            self._begin_at(layer)
            arrival = self._arrivals.pop(layer)
        arrival.hold()

    def release(self, layer: int) -> None:
        """See nn.residency.Residency."""
        if layer in self._place:
            self._taken.discard(self._slot_of[layer])
            self._bring()

    def close(self) -> None:
        """Lets all memory of the host and the disk go; the layers are gone with it."""
        if not self._open:
            return
        self._open = False
        self._courier.close()
        self._arrivals.clear()
        self._homes.close()

    def _begin_at(self, layer: int) -> None:
        """A first sweep, or one after a sweep that ended on its way: what is in the slots is of no use."""
        self._taken.clear()
        self._arrivals.clear()
        self._next = self._place[layer]
        self._bring()

    def _bring(self) -> None:
        """Asks for the layers whose slots are free, in order, up to the first whose slot is not."""
        while (slot := self._slot_of[layer := self._order[self._next]]) not in self._taken:
            self._taken.add(slot)
            delivery = self._homes.delivery(layer)
            self.brought_bytes += delivery.link_bytes
            self._arrivals[layer] = self._courier.bring(delivery)
            self._next = (self._next + 1) % len(self._order)


def hides_launches(residency: Residency) -> bool:
    """Whether the link takes longer for a sweep than the host takes to launch it, so that recording it would gain nothing."""
    if not isinstance(residency, StreamedLayers):
        return False
    return residency.placement.streamed_bytes > LAUNCHED_BYTES * len(residency.placement.layers)
