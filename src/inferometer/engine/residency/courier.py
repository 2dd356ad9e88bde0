"""Who brings deliveries: whoever asks for them, where that is only queueing copies; a thread, where somebody has to wait for a disk."""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import Protocol

from inferometer.engine.residency.delivery import Delivery
from inferometer.engine.residency.disk_reader import DiskReader
from inferometer.engine.residency.link import Link, Mark


class Arrival(Protocol):
    """Of a delivery that has been asked for."""

    def hold(self) -> None:
        """What is given to the current stream from now on finds the layer in its slot. Raises what went wrong on its way."""


class Courier(Protocol):
    """Brings deliveries in the order in which they are asked for."""

    def bring(self, delivery: Delivery) -> Arrival:
        """Begins once what the current stream has been given so far is done with the slot."""

    def close(self) -> None:
        """Nothing is brought any longer; what is under way has ended."""


def deliver(delivery: Delivery, link: Link, reader: DiskReader | None) -> Mark:
    """Queues all copies of a delivery: one over the link, unless some of it comes from the disk."""
    if delivery.device.numel():
        link.copy(delivery.slot[: delivery.device.numel()], delivery.device)
    if delivery.host.numel():
        link.copy(delivery.host_slot, delivery.host)
    if delivery.disk is not None:
        assert reader is not None
        reader.read(delivery.disk, delivery.disk_slot, link)
    return link.copied()


class DirectCourier:
    """Queues copies on a link that makes them by itself; for layers of which nothing is on a disk."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def bring(self, delivery: Delivery) -> Arrival:
        self._link.after(self._link.computed())
        return deliver(delivery, self._link, None)

    def close(self) -> None:
        self._link.copied().wait()


class ThreadCourier:
    """A thread that reads the disk and queues copies, ahead of those who wait for them."""

    def __init__(self, link: Link, reader: DiskReader | None) -> None:
        self._link = link
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._asked, link, reader), name="weights", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._asked.put, None)

    def bring(self, delivery: Delivery) -> Arrival:
        asked = _Asked(delivery, self._link.computed())
        self._asked.put(asked)
        return asked

    def close(self) -> None:
        self._end()
        self._thread.join()
        self._link.copied().wait()


class _Asked:
    """A delivery on its way through the thread."""

    def __init__(self, delivery: Delivery, free: Mark) -> None:
        self.delivery, self.free = delivery, free
        self._queued = threading.Event()
        self._mark: Mark | None = None
        self._error: BaseException | None = None

    def settle(self, mark: Mark | None, error: BaseException | None) -> None:
        """Its copies are queued, or will never be."""
        self._mark, self._error = mark, error
        self._queued.set()

    def hold(self) -> None:
        self._queued.wait()
        if self._error is not None:
            raise self._error
        assert self._mark is not None
        self._mark.hold()


def _work(queue: SimpleQueue[_Asked | None], link: Link, reader: DiskReader | None) -> None:
    """Not a method: a thread that held its courier would keep it for ever."""
    while (asked := queue.get()) is not None:
        try:
            link.after(asked.free)
            asked.settle(deliver(asked.delivery, link, reader), None)
        except BaseException as error:  # noqa: BLE001  (raised where the layer is waited for)
            asked.settle(None, error)
