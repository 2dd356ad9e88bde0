"""Messages as bytes: each a length of four bytes and a pickle.

Pickle is as fast as any format for tuples of numbers and keeps the types; it is trusted here as the socket pair has no name and each
end is held by one process of ours alone.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from typing import Final

from inferometer.server.messages import Command, Event

_LENGTH: Final = 4
_LONGEST: Final = 2**31


def frame(message: Command | Event) -> bytes:
    """The message, ready to be written."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(_LENGTH, "little") + body


class FrameReader:
    """Puts messages together from bytes that arrive in any pieces."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Command | Event]:
        """The messages that are whole now. Raises ValueError for a length that no message has."""
        held = self._held
        held += data
        start = 0
        try:
            while len(held) - start >= _LENGTH:
                length = int.from_bytes(held[start : start + _LENGTH], "little")
                if length >= _LONGEST:
                    raise ValueError(f"a frame of {length} bytes: the other side is no server process of this version")
                stop = start + _LENGTH + length
                if len(held) < stop:
                    return
                message: Command | Event = pickle.loads(bytes(held[start + _LENGTH : stop]))
                start = stop
                yield message
        finally:
            del held[:start]


def receive(end: socket.socket, reader: FrameReader) -> list[Command | Event]:
    """Waits for bytes and returns the messages that they complete. Raises EOFError where the other side is gone."""
    try:
        data = end.recv(1 << 16)
    except ConnectionResetError:
        data = b""
    if not data:
        raise EOFError("the other process is gone")
    return list(reader.feed(data))
