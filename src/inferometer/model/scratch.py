"""Where a file or folder is made before it takes its place in one step, so that nobody sees half of it.

A process that is killed leaves it behind. Whoever next writes to the same place removes it: a lock says whether its writer lives.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from inferometer.model.byte_size import gib

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a system says of a disk, or of a limit, that takes no more."""

_SUFFIX: Final = ".part"
_LOCK: Final = "lock"
_MADE: Final = "made"


@contextmanager
def scratch_beside(target: Path) -> Iterator[Path]:
    """A new, empty folder beside `target` for whatever is to be moved there; it goes at the end with what is still in it.

    What killed processes had left beside the same target goes first. Makes the folder above where there is none. Raises OSError where
    that cannot be done.
    """
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target)
    folder, lock = _locked_folder(target)
    try:
        (folder / _MADE).mkdir()
        yield folder / _MADE
    finally:
        _remove(folder)
        if lock is not None:
            os.close(lock)


def remove_abandoned(target: Path, say: Callable[[str], None] = lambda line: None) -> None:
    """Removes what processes that are gone have left beside `target`, and says so in one line.

    What a live one is writing stays, and so does all where there are no locks, as on some network's disk.
    """
    target = target.absolute()
    removed = [size for path in _beside(target) if (size := _remove_unlocked(path)) is not None]
    if removed:
        say(f"removed {gib(sum(removed))} that a run which was killed had left beside {target}")


def is_being_made(target: Path) -> bool:
    """Whether a live process has a scratch folder beside `target`; False where there are no locks that would tell."""
    return any(_in_use(path) for path in _beside(target.absolute()))


def _beside(target: Path) -> list[Path]:
    """What was made to take the target's place, by whomever."""
    name = re.compile(re.escape(f".{target.name}.") + r"[a-z0-9_]{8}" + re.escape(_SUFFIX))
    try:
        return [path for path in target.parent.iterdir() if name.fullmatch(path.name)]
    except OSError:  # not there yet, or not for us to look at
        return []


def _in_use(folder: Path) -> bool:
    if os.name != "posix":
        return False
    import fcntl

    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    finally:
        os.close(lock)
    return False


def _locked_folder(target: Path) -> tuple[Path, int | None]:
    """The new folder and the file whose lock says that it is in use."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=_SUFFIX, dir=target.parent))
        if os.name != "posix":  # elsewhere are no such locks, and nothing is removed
            return folder, None
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # taken for an abandoned one
            continue
        except OSError:
            folder.rmdir()
            raise
        import fcntl

        with suppress(OSError):  # without locks nobody removes it
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return folder, lock
        os.close(lock)  # taken for an abandoned one before it was locked


def _remove_unlocked(folder: Path) -> int | None:
    """How many bytes of files went with it; None where it stays."""
    if os.name != "posix":
        return None
    import fcntl

    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return None  # in a folder that many write to, names are anybody's
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        with suppress(OSError):
            folder.rmdir()  # killed before it had a lock, or after it had given it back: nothing is in it
        return None
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = sum(path.lstat().st_size for path in (folder / _MADE).rglob("*") if not path.is_dir())
        _remove(folder)
    except OSError:  # in use, or another process is removing it
        return None
    finally:
        os.close(lock)
    return None if folder.exists() else size


def _remove(folder: Path) -> None:
    """What was made first: without its lock a folder with something in it would stay for ever."""
    shutil.rmtree(folder / _MADE, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
