"""Records on disk: one JSON object a line, only ever appended, each on the disk before the next case starts."""

from __future__ import annotations

import json
import os
import warnings
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from inferometer.bench.records.record import Record
from inferometer.bench.records.record_file import REMEDY, records_in
from inferometer.errors import DamageWarning, UserError

_BEGINNINGS: Final = (b'{"schema_version"', b'{"shared"')
"""Of the first line of a file of records, whole or torn."""

_LONGEST_LINE: Final = 2**24
"""Bytes; what is longer is no record, and not to be read into memory to know."""


class Journal:
    """A file that records are appended to. Raises UserError at once, before anything is measured, where the file cannot be written, or
    where it holds something else, which a record at its end would spoil.

    `option` is what the user named the file by.
    """

    def __init__(self, path: Path, option: str = "--output") -> None:
        try:
            # A pipe or a device (/dev/null) has no end to look at and nothing that a disk could keep.
            self._on_disk = path.is_file() or not path.exists()
            self._file: IO[bytes] = path.open("ab+" if self._on_disk else "ab")
        except OSError as error:
            raise UserError(f"{option} {path}: {error.strerror}; name a file in a folder that you may write to") from error
        if self._on_disk and not _begins_with_a_record(self._file):
            self._file.close()
            raise UserError(f"{option} {path}: holds something other than records, one a line; name another file")
        # A process killed while it wrote leaves a line without an end; ours must not be glued to it.
        if self._on_disk and self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def append(self, record: Record) -> None:
        """Writes one record and returns when the disk has it. Raises OSError where it cannot, as when it is full."""
        line = json.dumps(record.to_json(), allow_nan=False, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        if self._on_disk:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        # What `append` could not write, it has complained of; trying again would only raise again.
        with suppress(OSError):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Sink:
    """Takes records as they come into a journal, if there is one.

    A journal that fails (a full disk) gets no more, and the sweep goes on: what was measured can still be printed. `failure` is why,
    `kept` how many records it had taken.
    """

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self.kept = 0
        self.failure: OSError | None = None

    def take(self, record: Record) -> None:
        """Appends a record, or remembers why that failed."""
        if self._journal is None or self.failure is not None:
            return
        try:
            self._journal.append(record)
        except OSError as error:
            self.failure = error
        else:
            self.kept += 1


def repair(path: Path) -> int:
    """Takes off the end of a journal what a crash left of a line. Returns how many bytes; 0 where nothing was torn or there is no file.

    A last line that only lacks its end is a whole record, and stays. Raises UserError where the file cannot be written.
    """
    try:
        with path.open("rb+") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            last = content[whole:]
            if not last or _is_object(last):
                return 0
            file.truncate(whole)
            os.fsync(file.fileno())
            return len(last)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a folder that you may write to") from error


def _begins_with_a_record(file: IO[bytes]) -> bool:
    """Whether the first line that says anything is of a file of records; so is a file without one."""
    file.seek(0)
    first = b"\n"
    while first and not first.strip():
        first = file.readline(_LONGEST_LINE)
    first = first.removeprefix(b"\xef\xbb\xbf").strip()
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        # A brace alone is rather how other documents begin.
        return not first or any(first.startswith(each) or (each.startswith(first) and len(first) > 2) for each in _BEGINNINGS)
    return isinstance(value, dict) and ("schema_version" in value or "shared" in value)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def read_records(path: Path) -> list[Record]:
    """The records of a journal in the order in which they were written. Warns of a line torn by a crash, which is passed over.

    Raises UserError naming the file for one that holds no record at all, and what `records_in` does.
    """
    remarks: list[str] = []
    records = list(records_in(path, remarks))
    if not records:
        raise UserError(f"{path} holds no record; {REMEDY}")
    for remark in remarks:
        warnings.warn(remark, DamageWarning, stacklevel=2)
    return records
