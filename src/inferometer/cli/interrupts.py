"""Signals that end a command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts() -> Iterator[None]:
    """Inside, a supervisor's SIGTERM and a terminal that is gone (SIGHUP) raise KeyboardInterrupt as a terminal's SIGINT does.

    So whatever ends a command ends it in one way: what it opened is closed, its processes end, what was measured is there. A signal that
    whoever started the command has it ignore, as nohup does with SIGHUP, stays ignored. Threads get no signals: there it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        # Python remembers an interrupt that came while it ran a piece of source, as the making of a dataclass is, and at the end of
        # `python -m` gives it for the exit code, whatever has become of it. Another piece of source makes it forget.
        exec("")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
