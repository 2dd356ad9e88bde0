"""The standard output and the standard error: one that is closed, full or has nobody left to read it must cost no more than a line."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO


class Output(io.TextIOBase):
    """The standard output, which remembers why it failed: what raises may be caught, or be taken for a file's failure, on its way up."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's."""
        return self._stream.encoding

    def write(self, text: str) -> int:
        """To the stream. Raises its OSError."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """To whoever reads. Raises the stream's OSError."""
        try:
            self._stream.flush()
        except OSError as error:
            self.failure = error
            raise

    def fileno(self) -> int:
        """The stream's."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """The stream's."""
        return self._stream.isatty()

    def drop(self) -> None:
        """Forgets what the stream did not take."""
        _drop(self._stream)


@contextmanager
def standard_output() -> Iterator[Output]:
    """The standard output as an `Output`, which it is for everybody inside.

    One that was closed before this process began is another that takes nothing, which counts once something is printed; a closed standard
    error goes nowhere. What an encoding lacks is a question mark.
    """
    if sys.stdout is None:  # which print() would pass over
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115  (for as long as the process lives)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    output = Output(sys.stdout)
    with redirect_stdout(output):
        yield output


def tell(line: str) -> None:
    """A line on the standard error. One that takes nothing, takes nothing: the exit code still says how it ended."""
    try:
        print(f"inferometer: {' '.join(line.split())}", file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Turns a stream away from what takes nothing: what it still holds would fail again when the interpreter ends."""
    with suppress(OSError, ValueError):  # one that is no file of the system is dropped with its buffer
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, stream.fileno())
        os.close(silent)
