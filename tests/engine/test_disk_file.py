"""The file of weights: whole or not at all, alone, and gone with its process."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import in_a_fork

from inferometer.engine.residency.disk_file import BLOCK_BYTES, DiskError, DiskFaultError, DiskFile, DiskSpace, extents, remove_abandoned
from inferometer.engine.residency.disk_reader import BUFFER_BYTES, BUFFERS, buffer_bytes

HOLDER = """
import sys, time
from pathlib import Path
from inferometer.engine.residency.disk_file import DiskFile, DiskSpace
file = DiskFile(DiskSpace(Path(sys.argv[1])), 4096)
print(file.path, flush=True)
sys.stdin.read()
"""


def aligned(size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size))


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    file = DiskFile(DiskSpace(tmp_path / "new" / "folder"), 3 * BLOCK_BYTES)
    assert file.path.stat().st_size == 3 * BLOCK_BYTES
    data = aligned(2 * BLOCK_BYTES)
    data[:] = os.urandom(2 * BLOCK_BYTES)
    file.write(data, BLOCK_BYTES)
    found = aligned(2 * BLOCK_BYTES)
    file.read(found, BLOCK_BYTES)
    assert found == data
    file.close()
    file.close()
    assert not list((tmp_path / "new" / "folder").iterdir())


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=20))
def test_extents_begin_at_blocks_and_do_not_meet(sizes: list[int]) -> None:
    found, end = extents(sizes)
    assert [extent.size for extent in found] == sizes
    assert all(extent.offset % BLOCK_BYTES == 0 for extent in found)
    ends = [extent.offset + extent.size for extent in found]
    assert all(before <= after.offset for before, after in zip(ends, found[1:], strict=False))
    assert ends[-1] <= end < ends[-1] + BLOCK_BYTES


@given(st.integers(1, 10**10), st.none() | st.integers(1, 10**10))
def test_buffers_are_blocks_and_no_larger_together_than_what_they_serve(largest: int, most: int | None) -> None:
    size = buffer_bytes(largest, most)
    assert size % BLOCK_BYTES == 0
    assert size <= BUFFER_BYTES
    assert BUFFERS * size <= max(largest if most is None else min(largest, most), BUFFERS * BLOCK_BYTES)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskError, match=r"^--disk [^\n]* 2\.00 GiB of weights: the disk is full[^\n]*--host-memory$"):
        DiskFile(DiskSpace(tmp_path), 2**31)
    assert not list(tmp_path.iterdir())


def test_a_write_that_the_system_cuts_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.preadv
    file = DiskFile(DiskSpace(tmp_path), 2 * BLOCK_BYTES)
    data = aligned(2 * BLOCK_BYTES)
    data[:] = os.urandom(2 * BLOCK_BYTES)
    monkeypatch.setattr(os, "pwrite", lambda handle, part, place: write(handle, part[:1000], place))
    file.write(data, 0)
    monkeypatch.setattr(os, "preadv", lambda handle, parts, place: read(handle, [parts[0][:BLOCK_BYTES]], place))
    found = aligned(2 * BLOCK_BYTES)
    file.read(found, 0)
    assert found == data
    file.close()


def test_a_write_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DiskFile(DiskSpace(tmp_path), BLOCK_BYTES)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(DiskFaultError, match=r"^--disk [^\n]* cannot be written: Input/output error; give another folder with --disk$"):
        file.write(aligned(BLOCK_BYTES), 0)
    file.close()


def test_a_file_system_without_direct_reads_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def plain(path: object, flags: int, *more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", plain)
    file = DiskFile(DiskSpace(tmp_path), BLOCK_BYTES)
    assert not file.direct
    data = aligned(BLOCK_BYTES)
    data[:3] = b"abc"
    file.write(data, 0)
    found = aligned(BLOCK_BYTES)
    file.read(found, 0)
    assert found == data
    file.close()


def test_a_file_system_that_refuses_the_reads_themselves_is_read_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DiskFile(DiskSpace(tmp_path), BLOCK_BYTES)
    read, refused = os.preadv, []

    def refuse(handle: int, parts: list[memoryview], place: int) -> int:
        if handle == file._direct:
            refused.append(place)
            raise OSError(errno.EINVAL, "Invalid argument")
        return read(handle, parts, place)

    monkeypatch.setattr(os, "preadv", refuse)
    file._direct = os.dup(file._lock)
    file.read(aligned(BLOCK_BYTES), 0)
    assert refused == [0]
    assert not file.direct
    file.close()


def test_a_removed_file_is_not_read(tmp_path: Path) -> None:
    file = DiskFile(DiskSpace(tmp_path), BLOCK_BYTES)
    file.path.unlink()
    with pytest.raises(DiskFaultError, match="removed"):
        file.read(aligned(BLOCK_BYTES), 0)
    file.close()


def test_a_file_in_the_folders_place_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(DiskError, match=r"^--disk [^\n]*give another folder with --disk$"):
        DiskFile(DiskSpace(path), BLOCK_BYTES)
    with pytest.raises(DiskError, match=r"^--disk [^\n]*give another folder with --disk$"):
        DiskFile(DiskSpace(path / "below"), BLOCK_BYTES)


def test_a_folder_that_is_not_ones_own_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DiskError, match=r"^--disk [^\n]*Permission denied; give another folder with --disk$"):
        DiskFile(DiskSpace(tmp_path), BLOCK_BYTES)


def test_a_killed_process_leaves_a_file_that_the_next_one_removes(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    theirs = Path(process.stdout.readline().strip())
    other = tmp_path / "inferometer-weights-of-a-person.txt"
    other.touch()
    ours = DiskFile(DiskSpace(tmp_path), BLOCK_BYTES)
    remove_abandoned(tmp_path)
    assert theirs.exists(), "a file in use stays"
    assert ours.path.exists()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert theirs.exists()
    again = DiskFile(DiskSpace(tmp_path), BLOCK_BYTES)
    assert not theirs.exists()
    assert ours.path.exists()
    assert other.exists()
    again.close()
    ours.close()
    assert [path.name for path in tmp_path.iterdir()] == [other.name]


def test_a_process_that_ends_takes_its_file_along(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.DEVNULL, check=True, capture_output=True)
    assert not list(tmp_path.iterdir())


def test_a_fork_that_ends_leaves_the_file(tmp_path: Path) -> None:
    file = DiskFile(DiskSpace(tmp_path), 4096)
    in_a_fork(file.close)
    assert file.path.exists()
    file.close()
    assert not list(tmp_path.iterdir())
