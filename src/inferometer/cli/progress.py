"""A progress bar with the time left, on stderr, where a person is watching."""

from __future__ import annotations

import sys
from typing import Any


class Bar:
    """Draws nothing unless stderr and stdout are terminals: a log file wants no carriage returns, a pipe no escape codes."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: Any = None

    def start(self, total: int) -> None:
        """Shows the bar with `total` runs to come."""
        if sys.stderr.isatty() and sys.stdout.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=self._label, unit="run", file=sys.stderr, leave=False, dynamic_ncols=True)

    def advance(self, count: int = 1) -> None:
        """Counts finished runs."""
        if self._bar is not None:
            self._bar.update(count)

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.close()
