"""A copy engine for tests on a CPU."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from inferometer.nn.copying import Mark, Pair, Passed


class _Copied:
    def __init__(self) -> None:
        self._done = threading.Event()
        self.error: BaseException | None = None

    def set(self, error: BaseException | None = None) -> None:
        self.error = error
        self._done.set()

    def synchronize(self) -> None:
        self._done.wait()
        if self.error is not None:
            raise self.error


class ThreadCopier:
    """A thread that copies at `bytes_s` a second while the computation goes on: a GPU's copy engine, as far as order is concerned.

    What is read before its copy was waited for is stale, and what is overwritten while it is still read is wrong: on a CPU that
    shows in the tokens, as it would on a GPU.
    """

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._jobs: queue.SimpleQueue[tuple[Sequence[Pair], Sequence[Mark], _Copied] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)
        self._thread.start()

    def copy(self, pairs: Sequence[Pair], after: Sequence[Mark] = ()) -> Mark:
        """Queued for the thread."""
        done = _Copied()
        self._jobs.put((tuple(pairs), tuple(after), done))
        return done

    def mark(self) -> Mark:
        """All that was launched has run."""
        return Passed()

    def wait(self, mark: Mark) -> None:
        """The computation is the host's own."""
        mark.synchronize()

    def close(self) -> None:
        """Ends the thread behind the copies that are queued."""
        last = self.copy(())
        self._jobs.put(None)
        self._thread.join()
        last.synchronize()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            pairs, after, done = job
            try:
                for mark in after:
                    mark.synchronize()
                for target, source in pairs:
                    time.sleep(target.nbytes / self._bytes_s)
                    target.copy_(source)
            except Exception as error:  # noqa: BLE001 - goes to whoever waits
                done.set(error)
            else:
                done.set()
