"""A progress bar with the time left, on stderr, where a person is watching."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_WIDTH = 80


class Bar:
    """Draws nothing unless stderr and stdout are terminals: a log file wants no carriage returns, a pipe no escape codes."""

    def __init__(self, label: str, unit: str = "run") -> None:
        self._label, self._unit = label, unit
        self._bar: Any = None
        self._total, self._done, self._began = 0, 0, 0.0

    def start(self, total: int) -> None:
        """Shows the bar with `total` units to come."""
        self._total, self._done, self._began = total, 0, time.perf_counter()
        if sys.stderr.isatty() and sys.stdout.isatty():
            from tqdm import tqdm

            # A terminal that states no width (`script`, some CI) would get a bar of none.
            width = None if os.get_terminal_size(sys.stderr.fileno()).columns else _WIDTH
            self._bar = tqdm(
                total=total, desc=self._label, unit=self._unit, file=sys.stderr, leave=False, dynamic_ncols=width is None, ncols=width
            )

    def advance(self, count: int = 1) -> None:
        """Counts finished units."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)

    def seconds_left(self) -> float | None:
        """What the rest takes at the pace so far; None where the bar shows that itself, or nothing is finished yet."""
        if self._bar is not None or not self._done:
            return None
        return (time.perf_counter() - self._began) / self._done * (self._total - self._done)

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.close()
