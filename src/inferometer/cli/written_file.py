"""A file that a command was told to write: it appears whole, and one that stood there is lost to nothing but the new one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from inferometer.errors import RunError, UserError
from inferometer.model.scratch import FULL, scratch_beside


def write_file(option: str, path: Path, content: bytes) -> None:
    """Writes the file that `option` names, in one step; what is no plain file, such as a pipe or a link, is written where it is.

    Raises UserError where no file can be there, RunError where the disk takes no more; what stood there is then as it was.
    """
    try:
        _write(path, content)
    except OSError as error:
        if error.errno in FULL:
            raise RunError(f"{option} {path}: {error.strerror}; make room, or name a file on another disk") from error
        raise UserError(f"{option} {path}: {error.strerror}; name a file in a folder that you may write to") from error


def _write(path: Path, content: bytes) -> None:
    old = path.exists()
    if path.is_symlink() or (old and not path.is_file()) or not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        path.write_bytes(content)
        return
    if old:
        with path.open("ab"):  # who may write to a folder may replace what he may not write to
            pass
    with scratch_beside(path) as scratch:
        made = scratch / path.name
        made.write_bytes(content)
        if old:
            shutil.copymode(path, made)
        os.replace(made, path)
