"""Another rank as the threads that watch over ranks have it: its sockets, its process, and when it was last heard."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from inferometer.engine.parallel.lifeline import Neighbour

TICK: Final = 1.0
"""Seconds from beat to beat."""
SILENCE: Final = 4.0
PATIENCE: Final = 60.0
BEAT: Final = b"\n"
END: Final = b"."
"""The last of rank 0's beats: what follows is no failure. The order to end comes another way, and may come later."""


@dataclass(slots=True)
class Peer:
    """Another rank: its number, the two sockets to it, and the process, where it is one of this machine. spoke: whether it has said why
    it ends."""

    rank: int
    commands: socket.socket
    beats: socket.socket
    process: Neighbour | None
    pid: int
    heard: float = 0.0
    held: bytearray = field(default_factory=bytearray)
    spoke: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid}{'' if self.process else ' of another machine'})"

    def hung(self, now: float) -> bool:
        """Whether it has been silent for too long. now: seconds, by the clock of `heard`."""
        silent = now - self.heard
        return silent > SILENCE and (self.process is None or self.process.stopped or silent > PATIENCE)

    def cut(self) -> None:
        """Ends it as far as that is possible from here, and whatever waits for it."""
        if self.process is not None:
            self.process.kill()
        for end in (self.commands, self.beats):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def dismiss(self) -> None:
        """Lets it know that rank 0 is about to end."""
        with suppress(OSError):
            self.beats.send(END)

    def close(self) -> None:
        """Lets go of it."""
        self.commands.close()
        self.beats.close()
        if self.process is not None:
            self.process.close()
