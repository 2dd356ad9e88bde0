"""A server that is forked where all of its packages are loaded, and an engine that is forked from it: their import is most of a start."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from io import TextIOWrapper
from multiprocessing.connection import Connection
from typing import Any

import torch

import forked
from inferometer.cli.main import main
from inferometer.server import engine_process, life
from inferometer.server.child import Child


class ForkedServer:
    """`inferometer serve` with some arguments in such a process. As far as tests go, what subprocess.Popen would have made of it.

    stderr: what it writes, as text; its standard output is nowhere.
    """

    stdout = None

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        apart = forked.context()
        ours, theirs = apart.Pipe(duplex=False)
        self._process = apart.Process(target=_serve, args=(arguments, environment, theirs))
        self._process.start()
        theirs.close()
        self.stderr = TextIOWrapper(os.fdopen(os.dup(ours.fileno()), "rb"), encoding="utf-8")
        ours.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired where it does not end in so many seconds."""
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("inferometer serve", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it."""
        self.send_signal(signal.SIGKILL)


def _serve(arguments: list[str], environment: dict[str, str], errors: Connection) -> None:
    os.environ.clear()  # which held what the environment was when the first process was forked
    os.environ.update(environment)
    torch.set_num_threads(1)
    os.dup2(errors.fileno(), 2)
    errors.close()
    with open(os.devnull, "r+b") as nowhere:
        os.dup2(nowhere.fileno(), 0)
        os.dup2(nowhere.fileno(), 1)
    life.Child = _ForkedChild
    code = main(["serve", *arguments])
    logging.shutdown()  # as an interpreter ends
    sys.exit(code)


class _ForkedChild(Child):
    """The engine's process, forked from the server's: its packages are there, as nothing of them is used by then."""

    def start(self, other: socket.socket, errors: int, environment: Mapping[str, str]) -> Any:
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ.update(environment)
                signal.signal(signal.SIGHUP, signal.SIG_DFL)
                os.dup2(errors, 2)
                sys.stderr = sys.__stderr__
                channel = other.detach()
                os.closerange(3, channel)
                os.closerange(channel + 1, os.sysconf("SC_OPEN_MAX"))
                code = engine_process.main([str(channel), str(parent)])
            except BaseException:  # noqa: BLE001  (as an interpreter ends)
                traceback.print_exc()
            finally:
                os._exit(code)
        return _Forked(child)


class _Forked:
    """A child of this process. As subprocess.Popen, as far as a server goes."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self, timeout: float = 3600.0) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("the engine's process", timeout)
            time.sleep(0.005)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
