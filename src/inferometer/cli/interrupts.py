"""Signals that end a command."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_AGAIN_SECONDS = 0.01
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupts() -> Iterator[None]:
    """Inside, a supervisor's SIGTERM and a terminal that is gone (SIGHUP) raise KeyboardInterrupt as a terminal's SIGINT does.

    So whatever ends a command ends it in one way: what it opened is closed, its processes end, what was measured is there. A signal that
    whoever started the command has it ignore, as nohup does with SIGHUP, stays ignored. Threads get no signals: there it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    def unraisable(what: Any) -> None:
        if came and what.exc_type is KeyboardInterrupt:
            # It fell into a destructor or the like, whose errors Python throws away: it comes again, then into something else.
            again = threading.Timer(_AGAIN_SECONDS, _send, (came[-1],))
            again.daemon = True
            again.start()
        else:
            hook(what)

    wanted = [number for number in _NUMBERS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in wanted}
    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        yield
    except Exception as error:
        if came:
            raise KeyboardInterrupt from error  # which is what somebody has made this of
        raise
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            if signal.getsignal(number) is interrupt:  # and not what the command has left, as a server that wants to hear of no more
                signal.signal(number, handler)
        # Python remembers an interrupt that came while it ran a piece of source, as the making of a dataclass is, and at the end of
        # `python -m` gives it for the exit code, whatever has become of it. Another piece of source makes it forget.
        exec("")


def _send(number: int) -> None:
    """To the main thread, whatever it waits for, while somebody there listens."""
    if callable(signal.getsignal(number)):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
