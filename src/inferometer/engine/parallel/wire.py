"""What rank 0 tells the others, as bytes: frames of a length and a body, over a socket to each.

A socket costs rank 0 four microseconds a follower and step, over TCP as over a Unix socket; gloo's broadcast takes a hundred and waits for
the follower (benchmarks/rank_broadcast.py). TCP reaches other machines as well.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from inferometer.errors import UserError

_LENGTH: Final = struct.Struct("<I")
_STEP: Final = struct.Struct("<BQIQ")
_STEPS: Final = 1
"""The first byte of a step that comes alone. Pickles begin with another."""

RANKS: Final = 0
"""The target that every rank has from the start: its own ranks."""


@dataclass(frozen=True, slots=True)
class Call:
    """function(what the rank holds as `target`, *arguments), on every rank.

    answered: whether rank 0 waits until each has said how it went. keeps: the name under which its result is held from then on.
    """

    target: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    answered: bool = False
    keeps: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the engine held as `target`, if all tokens read so far add up to `seen` and `refused` calls have raised UserError."""

    target: int
    seen: int
    refused: int


@dataclass(frozen=True, slots=True)
class Forget:
    """What is held as `target` is not needed any more."""

    target: int


@dataclass(frozen=True, slots=True)
class End:
    """Nothing more will come."""


Order = Call | Step | Forget | End


def frame(orders: tuple[Order, ...]) -> bytes:
    """Orders, ready to be written."""
    match orders:
        case (Step(target, seen, refused),):
            body = _STEP.pack(_STEPS, target, seen, refused)
        case _:
            body = pickle.dumps(orders, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def orders(body: bytes) -> tuple[Order, ...]:
    """What `frame` made a body of."""
    if body[0] == _STEPS:
        _, target, seen, refused = _STEP.unpack(body)
        return (Step(target, seen, refused),)
    read: tuple[Order, ...] = pickle.loads(body)
    return read


class Frames:
    """The bodies that arrive at a socket, one after another."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._held = bytearray()

    def next(self) -> bytes:
        """Waits for a whole one. Raises EOFError where the other side is gone."""
        held = self._held
        while len(held) < _LENGTH.size or len(held) < _LENGTH.size + _LENGTH.unpack_from(held)[0]:
            try:
                data = self._end.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                raise EOFError("the other side is gone")
            held += data
        stop = _LENGTH.size + _LENGTH.unpack_from(held)[0]
        body = bytes(held[_LENGTH.size : stop])
        del held[:stop]
        return body


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call went on a rank: the number that came of it, if one did, or why it was refused: for its user to mend, or lack of memory."""

    value: int | None = None
    failed: Literal["user", "memory"] | None = None
    message: str = ""

    def frame(self) -> bytes:
        """As it is sent: JSON, so that rank 0 runs nothing that comes from elsewhere."""
        body = json.dumps([self.value, self.failed, self.message]).encode()
        return _LENGTH.pack(len(body)) + body

    @classmethod
    def of(cls, body: bytes) -> Answer:
        """What `frame` made a body of."""
        return cls(*json.loads(body))

    def error(self, rank: int) -> Exception | None:
        """What rank 0 raises of it."""
        match self.failed:
            case None:
                return None
            case "user":
                return UserError(f"rank {rank}: {self.message}")
            case "memory":
                import torch

                return torch.OutOfMemoryError(f"rank {rank}: {self.message}")
