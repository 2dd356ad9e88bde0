"""Who may drive what takes one thread at a time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

PAUSE_S: Final = 50e-6
"""How long who has had a turn stays away where another waits: a lock goes to whoever asks first once it is free, and that is who had it."""


class Turns:
    """Threads take turns: `with turns.asked(), turns.lock`.

    lock: held for a turn, and within one another time. An interrupt falls anywhere in Python, but neither into the taking of a lock by
    `with` nor into its release: what it may spoil is who comes next.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._asking: set[int] = set()
        self._later: deque[Callable[[], object]] = deque()

    @contextmanager
    def asked(self) -> Iterator[None]:
        """For as long as a turn is waited for and had, not within one."""
        thread = threading.get_ident()
        self._asking.add(thread)
        try:
            yield
        finally:
            self._asking.discard(thread)
            self._catch_up()
            if self._asking:
                time.sleep(PAUSE_S)

    def soon(self, call: Callable[[], object]) -> None:
        """Calls it within a turn, without waiting for one: now where nobody else has one, else as that ends.

        For destructors, which come in any thread and must not wait there: it may hold what the other one needs to end.
        """
        self._later.append(call)
        self._catch_up()

    def _catch_up(self) -> None:
        # Looked at again behind the lock: what came just before its release found it held.
        while self._later and self.lock.acquire(blocking=False):
            try:
                while self._later:
                    self._later.popleft()()
            finally:
                self.lock.release()
