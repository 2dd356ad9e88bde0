"""Who of the ranks is alive: beats each way over a socket of their own, and what follows when they stop.

A thread of each rank (`Watch` on rank 0, a `Tether` on the others) sends and listens, whatever the rank's work waits for. A socket that
ends is told at once. A rank without a beat counts as hung after SILENCE seconds; if it is a process of this machine that can be seen to
run, after PATIENCE: an import or a driver may hold a whole process up for longer. Who was stopped itself and goes on does not blame others
for that time.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from inferometer.engine.parallel.launch import Launch
from inferometer.engine.parallel.peer import BEAT, TICK, Peer
from inferometer.engine.parallel.wire import Answer

WORD: Final = 2.0
"""How long the launcher may take to say by which signal a rank ended."""
CAUSE: Final = 1.0
"""How long a rank is waited for that has ended without a word, after another has failed in what all do together: the end of one is an error
of all others, and one of those may be heard of first."""
REFUSED: Final = 5.0
"""How long rank 0 may do its part of a call that another rank has refused; it may be about to refuse it as well."""
GRACE: Final = 3.0
"""How long rank 0's device may take to end what waits for a rank that has failed, and rank 0 then to come back from its call."""


def may_be_anothers(error: BaseException) -> bool:
    """Whether an error may be another rank's end, met in a call that all make."""
    return isinstance(error, RuntimeError | EOFError | OSError) and type(error).__name__ != "OutOfMemoryError"


class Watch(threading.Thread):
    """Rank 0's thread over all others. launch: the process that started them, where it was ours.

    failure: what ended the ranks, in one line; None while they are well. failed: set with it. busy: set by rank 0 while it may wait for
    another rank; where such a wait cannot be ended, the process is. asking: set by rank 0 while it does its own part of a call that is
    answered. If another rank has refused its part, rank 0 may wait for it in a collective: it has REFUSED seconds to come back. refusal:
    the rank that ended the ranks by that, and what it said.
    """

    def __init__(self, peers: Sequence[Peer], launch: Launch | None) -> None:
        super().__init__(name="ranks", daemon=True)
        self.failure: str | None = None
        self.failed = threading.Event()
        self.busy = False
        self.asking = False
        self.refusal: tuple[int, Answer] | None = None
        self.releases: list[Callable[[float], object]] = []
        self._refused: float | None = None
        self._met: tuple[float, str] | None = None  # what a rank has met in a call of all, and how long its cause is waited for
        self._peers = peers
        self._launch = launch
        self._launcher = None if launch is None else launch.end
        self._lock = threading.Lock()
        self._ended: dict[int, str] = {}  # by process: how the launcher says that it ended
        self._waker, self._woken = socket.socketpair()
        self._closing = False

    def fail(self, reason: str) -> None:
        """Ends all ranks, if none of them has done so before."""
        with self._lock:
            if self.failure is not None or self._closing:
                return
            self.failure = " ".join(reason.split())
        for peer in self._peers:
            peer.cut()
        if self._launch is not None:
            self._launch.process.kill()
        self.failed.set()
        self._wake()

    def close(self) -> None:
        """Ends the thread. From here on a rank that ends is none that fails."""
        with self._lock:
            self._closing = True
        self._wake()
        if threading.current_thread() is not self and self.is_alive():
            self.join()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b".")

    def run(self) -> None:
        """Until it is closed, or the ranks have failed."""
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001  (ranks that nobody watches could wait for ever)
            self.fail(f"the ranks cannot be watched: {type(error).__name__}: {error}")
        finally:
            if self.failure is not None:
                self._last_resort()
            self._waker.close()
            self._woken.close()

    def _watch(self) -> None:
        ticked = time.monotonic()
        for peer in self._peers:
            peer.heard = ticked
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if self._launcher is not None:
                selector.register(self._launcher, selectors.EVENT_READ)
            for peer in self._peers:
                peer.beats.setblocking(False)
                selector.register(peer.beats, selectors.EVENT_READ, peer)
            due = ticked
            while not self._closing and self.failure is None:
                now = time.monotonic()
                if now >= due:
                    if now - ticked > 2 * TICK:  # this process was stopped, or starved
                        for peer in self._peers:
                            peer.heard = now
                    self._tick(now)
                    ticked, due = now, now + TICK
                until = due
                if self._met is not None:
                    until = min(due, self._met[0])
                    if now >= self._met[0]:
                        self.fail(self._met[1])
                for key, _ in selector.select(max(0.0, until - time.monotonic())):
                    if key.fileobj is self._launcher:
                        self._report(selector)
                    elif isinstance(key.data, Peer) and not self._hear(key.data):
                        selector.unregister(key.data.beats)

    def _tick(self, now: float) -> None:
        if not self.asking:
            self.refusal = self._refused = None
        elif self.refusal is not None and self._refused is not None and now > self._refused + REFUSED:
            rank, answer = self.refusal
            self.fail(f"rank {rank}: {answer.message}")
        for peer in self._peers:
            with suppress(OSError):
                peer.beats.send(BEAT)
            if peer.hung(now):
                self.fail(f"{peer} has stopped answering")

    def _hear(self, peer: Peer) -> bool:
        """False where no more will come, and has been told why."""
        try:
            data = peer.beats.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        peer.heard = time.monotonic()
        peer.held += data
        *lines, rest = peer.held.split(b"\n")
        peer.held = bytearray(rest)
        for line in filter(None, lines):
            said = json.loads(line)
            if "refused" in said:
                self.refusal, self._refused = (peer.rank, Answer(None, *said["refused"])), peer.heard
                continue
            peer.spoke = True
            reason = f"rank {peer.rank}: {said['failed']}"
            if not said.get("shared"):
                self.fail(reason)
            elif self._met is None:
                self._met = peer.heard + CAUSE, reason
        if not data and not peer.spoke:
            self._gone(peer)
        return bool(data)

    def _gone(self, peer: Peer) -> None:
        """It has ended without a word; the launcher may know by which signal."""
        deadline = time.monotonic() + WORD
        while self._launcher is not None and peer.pid not in self._ended and (left := deadline - time.monotonic()) > 0:
            with selectors.DefaultSelector() as selector:
                selector.register(self._launcher, selectors.EVENT_READ)
                if selector.select(left) and not self._read_report():
                    break
        self.fail(f"{peer} has ended{self._ended.get(peer.pid, '')}")

    def _report(self, selector: selectors.BaseSelector) -> None:
        if not self._read_report():
            assert self._launcher is not None
            selector.unregister(self._launcher)
            self._launcher = None
            self.fail("the launcher of the ranks has ended")

    def _read_report(self) -> bool:
        """Takes in what the launcher says; False where it is gone. It says one line, shorter than any buffer."""
        assert self._launcher is not None
        try:
            data = self._launcher.recv(1 << 16)
        except OSError:
            data = b""
        for line in data.splitlines():
            process, how = json.loads(line)
            self._ended[process] = f" ({how})"
        return bool(data)

    def _last_resort(self) -> None:
        for release in self.releases:
            with suppress(Exception):  # a device that has failed itself says so to whoever uses it
                release(GRACE)
        deadline = time.monotonic() + GRACE
        while self.busy and not self._closing and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.busy and not self._closing:
            print(f"inferometer: error: {self.failure}", file=sys.stderr, flush=True)
            os._exit(1)
