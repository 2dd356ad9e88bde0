"""Who is told how far a benchmark is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told how many runs are to come and when each has ended."""

    def start(self, total: int) -> None:
        """So many runs are to come."""

    def advance(self, count: int = 1) -> None:
        """So many have ended."""


class Silent:
    """Progress that nobody watches."""

    def start(self, total: int) -> None:
        pass

    def advance(self, count: int = 1) -> None:
        pass
