"""Processes of a test: which there are, and when they are gone."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

LIMIT_SECONDS = 10.0
"""Within which everything is gone after a rank has failed."""


class Watched:
    """Some processes, held by descriptors from now on."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._open = {pid: os.pidfd_open(pid) for pid in pids}

    def gone(self, seconds: float = LIMIT_SECONDS) -> list[int]:
        """Waits until they have ended, so long at most; those that have not."""
        deadline = time.monotonic() + seconds
        left = []
        for pid, descriptor in self._open.items():
            ended, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ended:
                left.append(pid)
            os.close(descriptor)
        self._open = {}
        return left


def descendants(pid: int) -> list[int]:
    """All processes that one has started, and theirs."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(each for child in found for each in descendants(child))]


def with_launcher(ranks: Iterable[int]) -> list[int]:
    """Ranks that one launcher has started, and that."""
    ids = list(ranks)
    launchers = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in ids}
    return [*launchers, *ids]


def in_a_fork(function: Callable[[], object]) -> None:
    """Calls it in a fork of this process, and fails if it raises there or does not return."""
    child = os.fork()
    if not child:
        try:
            signal.alarm(int(LIMIT_SECONDS))
            function()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
