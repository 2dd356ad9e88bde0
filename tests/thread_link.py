"""A link for tests on a CPU that copies while the computation goes on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from torch import Tensor

from inferometer.engine.residency.link import Mark


class ThreadLink:
    """A thread that copies at `bytes_s` a second: a GPU's copy engine, as far as order is concerned.

    What is read before its copy was waited for is stale, and what is overwritten while it is still read is wrong: on a CPU that
    shows in the tokens, as it would on a GPU.
    """

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)
        self._thread.start()

    def computed(self) -> Mark:
        return Reached(self)  # the computation is the host's own

    def after(self, mark: Mark) -> None:
        self._jobs.put(mark.wait)

    def copy(self, target: Tensor, source: Tensor) -> None:
        assert target.shape == source.shape
        assert target.dtype == source.dtype
        self._jobs.put(lambda: self._copy(target, source))

    def copied(self) -> Mark:
        mark = Reached(self, threading.Event())
        assert mark.event is not None
        self._jobs.put(mark.event.set)
        return mark

    def close(self) -> None:
        """Ends the thread behind the copies that are queued."""
        self._jobs.put(None)
        self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _copy(self, target: Tensor, source: Tensor) -> None:
        time.sleep(target.nbytes / self._bytes_s)
        target.copy_(source)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - goes to whoever waits
                self._error = error


class Reached:
    """A mark of a link, whose errors show there; without an event it has been reached."""

    def __init__(self, link: ThreadLink, event: threading.Event | None = None) -> None:
        self._link, self.event = link, event

    def wait(self) -> None:
        if self.event is not None:
            self.event.wait()
        self._link.check()

    hold = wait
