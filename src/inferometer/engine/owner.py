"""Whose something is that a fork of the process gets a copy of and has no part in: other processes, files, threads."""

from __future__ import annotations

import os


class Owner:
    """The process that made this."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a fork of that process, or of a fork."""
        return os.getpid() != self._process
