"""Lets a program that runs from its first token to its last be driven step by step: it runs in a thread, and waits where a step begins."""

from __future__ import annotations

import threading
from collections.abc import Callable


class _EndedError(BaseException):
    """Nobody wants the rest; unwinds the thread from its gate."""


class StepGate:
    """`program` runs in a thread of its own. It must call `start` before each step and `stop` after it; no other call returns before.

    What the program raises, the caller of `begin`, `step` or `finish` gets.
    """

    def __init__(self, program: Callable[[], None]) -> None:
        self._program = program
        self._may_go = threading.Semaphore(0)
        self._has_come = threading.Semaphore(0)
        self._unwanted = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def runs_here(self) -> bool:
        """Whether it is the program that asks."""
        return threading.current_thread() is self._thread

    def begin(self) -> None:
        """Runs up to where the first step begins."""
        self._thread.start()
        self._await()

    def step(self) -> None:
        """Runs a step, and up to where the next begins or the program ends."""
        self._may_go.release()
        self._await()

    def finish(self) -> None:
        """Waits for the end of a program whose steps have all run."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends the program wherever it waits."""
        self._unwanted = True
        self._may_go.release()
        if self._thread.ident is not None:
            self._thread.join()

    def start(self, *_: object) -> None:
        """Called by the program: a step begins."""
        self._has_come.release()
        self._may_go.acquire()
        if self._unwanted:
            raise _EndedError

    def stop(self, *_: object) -> None:
        """Called by the program: the step has ended."""

    def _await(self) -> None:
        self._has_come.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        try:
            self._program()
        except _EndedError:
            pass
        except BaseException as error:  # noqa: BLE001  (it is raised where it is waited for)
            self._error = error
        finally:
            self._has_come.release()
