"""A column's process as the study's own process holds it: started, asked with a time limit, and certainly ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import inferometer
from inferometer.bench.backends.entry import BackendEntry
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.machine.oom_killer import kills
from inferometer.bench.records.case import Case

START_S: Final = 300.0
"""How long a process may take until it can be asked anything: imports of torch and of a stack, from a slow disk."""

_LAST_WORDS: Final = 300
_MEMORY_WORDS: Final = ("std::bad_alloc", "out of memory", "MemoryError")


class WorkerEndedError(Exception):
    """The process gave no answer. `evidence` says in which way it ended by itself; of a time-out, in which step it was."""

    def __init__(self, status: Literal["oom", "error", "timeout"], evidence: str) -> None:
        super().__init__(evidence)
        self.status = status
        self.evidence = evidence


@dataclass(frozen=True, slots=True)
class Answer:
    """record: the case's, as plain values, where it ended. skipped: why nothing was tried. resident_bytes: what the process keeps."""

    resident_bytes: int
    record: Mapping[str, Any] | None = None
    skipped: str | None = None


class WorkerProcess:
    """A running process for the cases of one backend, under the interpreter that this wants."""

    def __init__(self, backend: BackendEntry) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._kills = kills()
        self._end, other = socket.socketpair()
        # Wherever this package lies, another interpreter finds it too.
        package = str(Path(inferometer.__file__).parent.parent)
        # There, that interpreter is its own and not another.
        environment = {name: value for name, value in os.environ.items() if name != backend.python_variable}
        with other:
            self._process = subprocess.Popen(
                [backend.python, "-m", "inferometer.bench.conduct.worker", str(other.fileno()), str(os.getpid()), backend.name],
                pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                env={**environment, "PYTHONPATH": os.pathsep.join([package, *filter(None, [environment.get("PYTHONPATH")])])},
                start_new_session=True,  # with whatever it starts, so that all can be ended
            )
        self._buffer = b""
        self._started = False
        self.resident_bytes = 0

    def load(self, request: BenchRequest, memory_limit: int | None, limit_s: float) -> Answer:
        """Has the model loaded. Raises WorkerEndedError, as all of these do."""
        message = {"do": "load", "request": asdict(request), "memory_limit": memory_limit}
        return self._ask(message, limit_s, "while the model was loaded")

    def begin(self, case: Case, limit_s: float) -> Answer:
        """Has room made for the case and its backend checked."""
        return self._ask({"do": "begin", "case": asdict(case)}, limit_s, "in the check before the first run")

    def run(self, *, warmups: int, runs: int, limit_s: float) -> Answer:
        """Has the case run."""
        return self._ask({"do": "run", "warmups": warmups, "runs": runs}, limit_s, "while it ran")

    def finish(self, *, shared: bool, limit_s: float) -> Answer:
        """Asks for the record of the case. shared: whether other processes of ours use the device."""
        return self._ask({"do": "end", "shared": shared}, limit_s, "while its record was made")

    def release(self, limit_s: float) -> Answer:
        """Has the model dropped."""
        return self._ask({"do": "release"}, limit_s, "while the model was dropped")

    def close(self) -> None:
        """Ends the process and all that it started, and waits for that."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._end.close()
        self._log.close()

    def _ask(self, message: Mapping[str, Any], limit_s: float, when: str) -> Answer:
        if not self._started:
            self._wait_for_start()
        with suppress(BrokenPipeError, ConnectionResetError):  # why it cannot be told, the answer that does not come says
            self._end.sendall(json.dumps(message).encode() + b"\n")
        answer = Answer(**self._receive(limit_s, when))
        self.resident_bytes = answer.resident_bytes
        return answer

    def _wait_for_start(self) -> None:
        when = "before it could be asked anything"
        try:
            self._receive(START_S, when)
        except WorkerEndedError as error:
            if error.status == "timeout":
                raise WorkerEndedError("error", f"the process did not start within {START_S:g} s") from None
            raise
        self._started = True

    def _receive(self, limit_s: float, when: str) -> dict[str, Any]:
        """The next line. Sleeps until it is there."""
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._end, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise WorkerEndedError("timeout", when)
                data = b""
                with suppress(ConnectionResetError):
                    data = self._end.recv(1 << 16)
                if not data:
                    raise self._ended(when)
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _ended(self, when: str) -> WorkerEndedError:
        code = self._process.wait()
        words = self._last_words()
        short = [line for line in words if any(word in line for word in _MEMORY_WORDS)]
        # Of an end for want of memory who said so, without the calls that led there.
        last = short[-1] if short else " ".join(words)
        said = f"; its last words: {last[-_LAST_WORDS:]}" if last else ""
        status: Literal["oom", "error"] = "oom" if short else "error"
        if code >= 0:
            return WorkerEndedError(status, f"the process ended with code {code}, {when}{said}")
        name = signal.Signals(-code).name
        if -code == signal.SIGKILL and kills() > self._kills:
            return WorkerEndedError("oom", f"the process was ended by {name} of the system's out-of-memory killer, {when}{said}")
        return WorkerEndedError(status, f"the process was ended by {name}, {when}{said}")

    def _last_words(self) -> list[str]:
        """The last lines that it wrote, each without the room around and between its words."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 4 * _LAST_WORDS))
        lines = self._log.read().decode(errors="replace").splitlines()
        return [words for line in lines if (words := " ".join(line.split()))]
