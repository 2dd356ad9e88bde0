"""Threads that take turns."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from inferometer.engine.turns import Turns

LONG_S = 30.0


def started(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> bool:
    thread.join(LONG_S)
    return not thread.is_alive()


def test_nobody_waits_for_a_thread_that_takes_one_turn_after_the_other() -> None:
    turns, over = Turns(), threading.Event()
    taken = 0

    def greedy() -> None:
        nonlocal taken
        while not over.is_set():
            with turns.asked(), turns.lock:
                taken += 1

    thread = started(greedy)
    for _ in range(50):
        with turns.asked(), turns.lock:
            before = taken
            assert taken == before
    over.set()
    assert ended(thread)


def test_what_is_to_be_called_soon_waits_for_nobody_and_is_forgotten_by_nobody() -> None:
    turns = Turns()
    called: list[str] = []
    turns.soon(lambda: called.append("free"))
    assert called == ["free"]
    with turns.asked(), turns.lock:
        assert ended(started(lambda: turns.soon(lambda: called.append("another's"))))
        assert called == ["free"]
        turns.soon(lambda: called.append("own"))
        assert called == ["free", "another's", "own"]
        assert ended(started(lambda: turns.soon(lambda: called.append("last"))))
    assert called == ["free", "another's", "own", "last"]


def test_interrupts_leave_the_turn_to_others() -> None:
    """Wherever they fall, as a terminal's do. Which thread comes next they may spoil, and nothing else."""
    turns, interrupts = Turns(), 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(300):
            signal.setitimer(signal.ITIMER_REAL, 1e-4 + number * 1e-6)
            try:
                while True:
                    with turns.asked(), turns.lock:
                        pass
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts == 300
    free: list[bool] = []
    assert ended(started(lambda: free.append(turns.lock.acquire(blocking=False))))
    assert free == [True]
