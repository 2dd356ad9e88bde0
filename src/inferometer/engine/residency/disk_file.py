"""A file of weights that the host's memory has no room for, which nobody else needs and which goes when its process goes."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferometer.engine.owner import Owner
from inferometer.errors import RunError, UserError
from inferometer.model.byte_size import gib
from inferometer.model.scratch import FULL

BLOCK_BYTES: Final = 4096
"""To which offsets, sizes and addresses of direct reads are aligned: the largest block of disks in use."""

_PREFIX, _SUFFIX = "inferometer-weights-", ".bin"


class DiskError(UserError):
    """A file of weights that cannot be made, written or read to its end."""


class DiskFaultError(DiskError, RunError):
    """One that was made, and then failed."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of bytes of the file; it begins at a block."""

    offset: int
    size: int

    @property
    def padded(self) -> int:
        """Bytes with those that fill its last block."""
        return -(-self.size // BLOCK_BYTES) * BLOCK_BYTES


def extents(sizes: list[int]) -> tuple[list[Extent], int]:
    """Where runs of these sizes lie one after another, and the size of the file."""
    found, end = [], 0
    for size in sizes:
        found.append(Extent(end, size))
        end += found[-1].padded
    return found, end


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Where weights may lie on a disk. relief: what to do so that less lies there. buffer_bytes: of the host's memory, most that reading
    it may take; None for what reads fastest."""

    folder: Path
    relief: str = "raise --host-memory"
    buffer_bytes: int | None = None


class DiskFile:
    """`size` bytes in a new file of a folder, which is made if need be.

    The file is locked for as long as it is open. Files that a killed process has left there, which nobody has locked, are removed first.
    All of its space is taken at once, so that a full disk is told before anything is written. Reads go around the system's cache where
    the file system lets them. Raises DiskError, one line, for whatever goes wrong.
    """

    def __init__(self, space: DiskSpace, size: int) -> None:
        self.folder = folder = space.folder
        self._relief = space.relief
        with self._told(f"cannot hold {gib(size)} of weights"):
            folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(folder)
            self.path, self._lock = _locked_file(folder)
        self._close = weakref.finalize(self, _remove, self.path, self._lock, Owner())
        try:
            with self._told(f"cannot hold {gib(size)} of weights"):
                if size:
                    os.posix_fallocate(self._lock, 0, size)
                self._direct = _direct(self.path)
        except DiskError:
            self._close()
            raise
        self._size = size
        self._close_direct = None if self._direct is None else weakref.finalize(self, os.close, self._direct)

    @property
    def direct(self) -> bool:
        """Whether reads go around the system's cache."""
        return self._direct is not None

    def write(self, data: memoryview, offset: int) -> None:
        """All of `data`, at `offset`."""
        with self._told("cannot be written", DiskFaultError):
            self._all(lambda part, place: os.pwrite(self._lock, part, place), data, offset)

    def read(self, into: memoryview, offset: int) -> None:
        """Fills `into`; its address and size and the offset are whole blocks."""
        with self._told("cannot be read", DiskFaultError):
            if os.fstat(self._lock).st_nlink == 0:
                raise OSError(errno.ENOENT, "somebody has removed it")
            if self._direct is not None:
                direct = self._direct
                try:
                    self._all(lambda part, place: os.preadv(direct, [part], place), into, offset)
                    return
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                # A file system that lets itself be opened so, and then reads nothing.
                self._direct = None
            self._all(lambda part, place: os.preadv(self._lock, [part], place), into, offset)

    def close(self) -> None:
        """Removes the file."""
        if self._close_direct is not None:
            self._close_direct()
        self._close()

    def _all(self, move: Callable[[memoryview, int], int], data: memoryview, offset: int) -> None:
        done = 0
        while done < len(data):
            moved = move(data[done:], offset + done)
            if moved <= 0:
                raise OSError(errno.EIO, f"it ends after {offset + done} of {self._size} bytes")
            done += moved

    @contextmanager
    def _told(self, what: str, kind: type[DiskError] = DiskError) -> Iterator[None]:
        """Makes one line of the system's errors."""
        try:
            yield
        except OSError as error:
            place, reason = getattr(self, "path", self.folder), error.strerror or str(error)
            if error.errno in FULL:
                reason, remedy = f"the disk is full ({reason})", f"free space there, or {self._relief}"
            else:
                remedy = "give another folder with --disk"
            raise kind(f"--disk {self.folder}: {place} {what}: {reason}; {remedy}") from None


def remove_abandoned(folder: Path) -> None:
    """Removes the files in `folder` whose processes are gone."""
    for path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # gone, or somebody else's
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except OSError:
            pass  # in use
        finally:
            os.close(file)


def _locked_file(folder: Path) -> tuple[Path, int]:
    while True:
        path = folder / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        if os.fstat(file).st_nlink:
            return path, file
        os.close(file)  # taken for an abandoned one before it was locked


def _direct(path: Path) -> int | None:
    """The file opened for reads around the system's cache; None where there are none."""
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None


def _remove(path: Path, file: int, owner: Owner) -> None:
    """A fork of the process that has the file ends, too, and must not take it along."""
    if not owner.forked:
        path.unlink(missing_ok=True)
    os.close(file)
