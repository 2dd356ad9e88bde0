"""What ties a rank to rank 0: a thread that ends its process when rank 0 does (see `health`)."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from inferometer.engine.parallel.lifeline import Neighbour
from inferometer.engine.parallel.peer import BEAT, END, TICK, Peer
from inferometer.engine.parallel.wire import Answer


class Tether(threading.Thread):
    """A follower's thread that ends its process when rank 0 does, or does not answer any more."""

    def __init__(self, beats: socket.socket, leader: Neighbour | None) -> None:
        super().__init__(name="ranks", daemon=True)
        self._peer = Peer(0, beats, beats, leader, 0)
        self._lock = threading.Lock()
        self._ending = False

    def fail(self, reason: str, *, shared: bool) -> None:
        """Tells rank 0 why this rank will end. shared: whether it may be another's end that this one has met in a call of them all."""
        self._say({"failed": reason, "shared": shared})

    def refuse(self, answer: Answer) -> None:
        """Tells rank 0 that this rank takes no part in what rank 0 does now, while that may wait for it."""
        self._say({"refused": [answer.failed, answer.message]})

    def _say(self, what: dict[str, Any]) -> None:
        with self._lock, suppress(OSError):
            self._peer.beats.sendall(json.dumps(what).encode() + b"\n")

    def loosen(self) -> None:
        """The end of rank 0 is none of a failure any more."""
        self._ending = True

    def run(self) -> None:
        """Until rank 0 is gone."""
        end = self._peer.beats
        ticked = self._peer.heard = time.monotonic()
        end.settimeout(TICK)
        while True:
            with self._lock, suppress(OSError):
                end.send(BEAT)
            try:
                data = end.recv(1 << 16)
            except TimeoutError:
                data = None
            except OSError:
                data = b""
            now = time.monotonic()
            self._ending = self._ending or END in (data or b"")
            if data or now - ticked > 3 * TICK:  # this process was stopped, or starved
                self._peer.heard = now
            if data == b"" or self._peer.hung(now):
                os._exit(0 if self._ending else 1)
            ticked = now
