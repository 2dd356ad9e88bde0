"""How processes of one machine know of each other: who dies with whom, who is stopped, and an end that hits nobody else."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int) -> None:
    """Ends this process when `parent`, which started it, ends, however that ends; at once if it already has. On Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def here() -> str:
    """Equal in two processes if and only if each can be reached by its id from the other."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return f"{socket.gethostname()}/{os.getpid()}"  # no Linux: reached by nobody


class Neighbour:
    """A process of this machine, held by a descriptor: no other process is meant once it has ended and its id is given away."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor: int | None = None
        with suppress(OSError, AttributeError):
            self._descriptor = os.pidfd_open(pid)

    @property
    def stopped(self) -> bool:
        """Whether it is there and does not run: stopped by a signal, or dead and not buried."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return True
        return state in "TtZX"

    def kill(self) -> None:
        """Ends it, stopped or not."""
        if self._descriptor is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def wait(self, seconds: float) -> None:
        """Returns when it has ended, or after so long."""
        if self._descriptor is not None:
            select.select([self._descriptor], [], [], max(seconds, 0.0))

    def close(self) -> None:
        """Lets go of it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
