"""After the signal that ends a server."""

from __future__ import annotations

import signal


def hear_no_more() -> None:
    """Signals that end a process are ignored from here on: both processes are ending, and one more would give another exit code."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
