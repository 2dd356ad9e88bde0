"""The engine's process as its parent holds it: started beside a socket pair, and certainly ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from inferometer.server.frames import frame
from inferometer.server.messages import Begin

GRACE_SECONDS = 3.0
"""How long a process that was told to end may take before it is killed."""

LAST_WORDS_SECONDS = 1.0
"""How long what it had written may take to be read once it has ended: its ranks may hold the pipe, and end a moment later."""


class Child:
    """A running engine process. `end` is our side of the socket pair.

    errors: gets each line that it, its ranks or a library of theirs writes to standard error. They write to a pipe that is always read:
    one that is not would stop them.
    """

    def __init__(self, environment: Mapping[str, str], errors: Callable[[bytes], None]) -> None:
        self.end, other = socket.socketpair()
        reading, writing = os.pipe()
        try:
            with other:
                self.process = self.start(other, writing, environment)
        finally:
            os.close(writing)
        self._reader = threading.Thread(target=_read, args=(reading, errors), name="errors", daemon=True)
        self._reader.start()

    def start(self, other: socket.socket, errors: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """The process, with its side of the pair and of the pipe."""
        # Not multiprocessing: its helpers (a resource tracker, semaphores) are further processes and names that could be left behind.
        return subprocess.Popen(
            [sys.executable, "-m", "inferometer.server.engine_process", str(other.fileno()), str(os.getpid())],
            pass_fds=(other.fileno(),),
            stdin=subprocess.DEVNULL,
            stderr=errors,
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
            self._reader.join(LAST_WORDS_SECONDS)


def _read(pipe: int, errors: Callable[[bytes], None]) -> None:
    with open(pipe, "rb") as file:
        for line in iter(partial(file.readline, 4096), b""):
            errors(line)
