"""The results of a batch job on disk: one JSON object a line, only ever appended, so that a killed job goes on where it stopped."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from inferometer.errors import RunError, UserError

SYNC_S = 0.25
"""Seconds between two waits for the disk: a killed process loses nothing that it wrote, and a machine that fails at most so much."""


_BEGINNING = b'{"index":'
"""Of every line, so that what is torn and what is somebody else's can be told apart."""


class ResultFile:
    """A job's results, opened to go on. Nobody else writes there meanwhile.

    job: what names the job; every line holds it. count: prompts that it has. done: indexes whose results are there.
    torn_bytes: what a crash left of a last line, which was taken off.

    Raises UserError where the file cannot be written, is being written by another process or holds anything but this job's results.
    """

    def __init__(self, path: Path, job: str, count: int) -> None:
        self.path = path
        self._job, self._count = job, count
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise UserError(f"--output {path}: is no file that a job could go on with; name one")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"--output {path}: another process is writing there; wait for it, or name another file") from None
            self.done, self._size, torn = self._read()
            self.torn_bytes = self._mend(torn)
        except OSError as error:
            os.close(self._file)
            raise self._unwritable(error) from None
        except BaseException:
            os.close(self._file)
            raise
        self._synced = time.monotonic()

    def append(self, index: int, result: dict[str, Any]) -> None:
        """Writes the result of a prompt that has none, whole or not at all; `result` says more than its index.

        Raises RunError where it cannot be written, as when the disk is full.
        """
        line = json.dumps({"index": index, **result, "job": self._job}, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"
        rest = memoryview(line.encode())
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            self._size += len(line.encode())
            self.done.add(index)
            if time.monotonic() - self._synced >= SYNC_S:
                self._sync()
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise self._failed(error) from None

    def close(self) -> None:
        """Waits for the disk and lets others write. Raises RunError where the disk does not take what it was given."""
        if self._file < 0:
            return
        try:
            self._sync()
        except OSError as error:
            raise self._failed(error) from None
        finally:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(RunError) if error is not None else nullcontext():  # what ended the job is told, not what came of it
            self.close()

    def _sync(self) -> None:
        os.fsync(self._file)
        self._synced = time.monotonic()

    def _mend(self, torn: bytes) -> int:
        """Completes a last line that lacks nothing but its end, and takes any other off. Returns how many bytes were taken off."""
        number = len(self.done) + 1
        if not torn:
            return 0
        if not (torn.startswith(_BEGINNING) or _BEGINNING.startswith(torn)):
            raise self._foreign(number)
        try:
            json.loads(torn)
        except ValueError:
            os.ftruncate(self._file, self._size)
            return len(torn)
        self.done.add(self._index(torn, number))
        os.write(self._file, b"\n")
        self._size += len(torn) + 1
        return 0

    def _read(self) -> tuple[set[int], int, bytes]:
        """The indexes that have results, the bytes of whole lines, and what is behind them."""
        done: set[int] = set()
        size = 0
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return done, size, line
                size += len(line)
                index = self._index(line, number)
                if index in done:
                    raise UserError(f"--output {self.path}, line {number}: repeats the result of prompt {index}; name another file")
                done.add(index)
        return done, size, b""

    def _index(self, line: bytes, number: int) -> int:
        try:
            found = json.loads(line)
            job, index = found["job"], found["index"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._foreign(number) from None
        if job != self._job:
            other = "holds results of another input or other settings"
            raise UserError(f"--output {self.path}: {other}; name another file, or remove this one to begin anew")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < self._count:
            raise self._foreign(number)
        return index

    def _foreign(self, number: int) -> UserError:
        return UserError(f"--output {self.path}, line {number}: is no result of this job; name another file")

    def _failed(self, error: OSError) -> RunError:
        return RunError(
            f"--output {self.path}: {error.strerror} after {len(self.done)} of {self._count} results; make room there and run the same "
            "command again: it goes on where it stopped"
        )

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(f"--output {self.path}: {error.strerror}; name a file in a folder that you may write to")
