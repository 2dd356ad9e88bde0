"""The engine's process as its parent holds it: started beside a socket pair, and certainly ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from inferometer.server.frames import frame
from inferometer.server.messages import Begin

GRACE_SECONDS = 3.0
"""How long a process that was told to end may take before it is killed."""


class Child:
    """A running engine process. `end` is our side of the socket pair."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.end, other = socket.socketpair()
        with other:
            # Not multiprocessing: its helpers (a resource tracker, semaphores) are further processes and names that could be left behind.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "inferometer.server.engine_process", str(other.fileno()), str(os.getpid())],
                pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
            )

    def begin(self, command: Begin) -> None:
        """Lets the engine load its model. What it answers, and that it is gone, is for whoever reads `end`."""
        with suppress(ConnectionError):
            self.end.sendall(frame(command))

    def finish(self, grace_seconds: float = GRACE_SECONDS) -> int:
        """Waits for its end, kills it if that takes too long, and returns its exit code."""
        try:
            return self.process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.end.close()
