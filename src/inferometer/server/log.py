"""Log lines on standard error, as text or JSON. No line holds text that a client sent; no start and no request waits for one to be read."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from queue import Empty, Full, Queue
from typing import Any, Final, TextIO

KEPT_LINES: Final = 10_000
"""So many lines wait for whoever reads them; more are lost."""

FLUSH_SECONDS: Final = 1.0
"""How long the process's end may wait for what is left to be read."""


class JsonFormatter(logging.Formatter):
    """One object a line: timestamp, level, message, target, and what a record carries as `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "message": record.getMessage(),
            "target": record.name,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class PatientHandler(logging.Handler):
    """Writes to a file descriptor from a thread: a pipe that nobody empties would stop the event loop otherwise.

    lost: lines that there was no room to keep, so far; the log says how many, and how many it could not write, whenever it can be written
    again.
    """

    def __init__(self, descriptor: int, kept: int = KEPT_LINES) -> None:
        super().__init__()
        self.lost = 0
        self._descriptor = descriptor
        self._lines: Queue[bytes] = Queue(kept)
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues the line."""
        try:
            self.write((self.format(record) + "\n").encode("utf-8", "backslashreplace"))
        except Exception:  # noqa: BLE001  (as every handler does: a line that cannot be written is no reason to fail)
            self.handleError(record)

    def write(self, line: bytes) -> None:
        """Queues what is no record, as it is."""
        try:
            self._lines.put_nowait(line)
        except Full:
            self.lost += 1

    def flush(self) -> None:
        """Waits until all is written, FLUSH_SECONDS at most."""
        end = time.monotonic() + FLUSH_SECONDS
        while self._lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.005)

    def _write(self) -> None:
        # Past the interpreter's own buffer, whose lock this thread would still hold at the end if nobody read on.
        told = refused = 0
        while True:
            data = self._lines.get()
            with suppress(Empty):
                while len(data) < 65_536:
                    data += self._lines.get_nowait()
                    self._lines.task_done()
            lost = self.lost + refused
            if lost > told:
                data += f"{lost - told} lines of the log were lost: nobody took them\n".encode()
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:  # of a full disk, say, which may have room again: it costs these lines and none behind them
                refused += data.count(b"\n") - (lost > told)
            else:
                told = lost
            self._lines.task_done()


class _PatientFile(io.RawIOBase):
    """A stream as a file, of which everything goes to the handler that writes to it. The stream stays open for as long."""

    def __init__(self, stream: TextIO, handler: PatientHandler) -> None:
        super().__init__()
        self._stream = stream
        self._handler = handler

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._handler.write(bytes(data))
        return len(data)

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()


def set_up_logging(*, as_json: bool) -> PatientHandler:
    """Lets everything from here on be logged to standard error, which takes what is printed there in the same patient way."""
    handler = PatientHandler(sys.stderr.fileno())
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for noisy in ("uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    sys.stderr = io.TextIOWrapper(_PatientFile(sys.stderr, handler), "utf-8", "backslashreplace", line_buffering=True)
    return handler
