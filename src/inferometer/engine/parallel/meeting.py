"""How ranks find rank 0: each opens two connections, one for commands and one for beats, and says who it is."""

from __future__ import annotations

import hmac
import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, Literal

from inferometer.engine.parallel.lifeline import Neighbour, here
from inferometer.engine.parallel.peer import Peer

HELLO_S: Final = 10.0
"""How long a connection may take to say who it is."""

START_S: Final = 300.0
"""How long ranks may take to come: imports of torch from a slow disk."""

Channel = Literal["commands", "beats"]


@dataclass(frozen=True, slots=True)
class Hello:
    """The first line on a connection, from both sides. place: as `lifeline.here` has it."""

    token: str
    rank: int
    channel: Channel
    pid: int
    place: str

    def line(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @property
    def process(self) -> Neighbour | None:
        """The one that says it, if it is of this machine."""
        return Neighbour(self.pid) if self.place == here() else None


def hello(token: str, rank: int, channel: Channel) -> Hello:
    """That of this process."""
    return Hello(token, rank, channel, os.getpid(), here())


def receive_hello(end: socket.socket, limit_s: float = HELLO_S) -> Hello:
    """The other side's. Raises OSError or ValueError where it says none within the time."""
    deadline, line = time.monotonic() + limit_s, b""
    while not line.endswith(b"\n"):
        end.settimeout(max(0.001, deadline - time.monotonic()))
        data = end.recv(1)  # byte by byte: what follows the line is another's to read
        if not data or len(line) > 1000:
            raise ValueError("no greeting")
        line += data
    end.settimeout(None)
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("no greeting")
    try:
        said = Hello(**found)
    except TypeError:
        raise ValueError("no greeting") from None
    if not all(isinstance(each, str) for each in (said.token, said.channel, said.place)) or not isinstance(said.rank, int):
        raise ValueError("no greeting")
    return said


def listen(host: str, port: int = 0) -> socket.socket:
    """A socket that ranks can connect to. Raises OSError for an address that is none of this machine, or taken."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Names such as localhost have addresses of both kinds, and torch's groups know best how to go by the older one.
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return socket.create_server(address[:2], family=family, backlog=64)


def gather(listener: socket.socket, size: int, token: str, check: Callable[[], None], limit_s: float = START_S) -> list[Peer]:
    """Waits until ranks 1 to size - 1 are connected; in that order. check: called now and then, to raise what ends the waiting.

    Connections of others are closed. Raises TimeoutError.
    """
    ends: dict[tuple[int, str], tuple[socket.socket, Hello]] = {}
    deadline = time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while len(ends) < 2 * (size - 1):
            check()
            if time.monotonic() > deadline:
                missing = sorted(set(range(1, size)) - {rank for rank, _ in ends})
                raise TimeoutError(f"rank {', '.join(map(str, missing))} did not come within {limit_s:g} s")
            if not selector.select(0.2):
                continue
            end, _ = listener.accept()
            with suppress(OSError, ValueError):
                said = receive_hello(end)
                known = hmac.compare_digest(said.token, token) and 0 < said.rank < size and (said.rank, said.channel) not in ends
                if known and said.channel in ("commands", "beats"):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    end.sendall(hello("", 0, said.channel).line())
                    ends[said.rank, said.channel] = end, said
                    continue
            end.close()
    return [
        Peer(rank, ends[rank, "commands"][0], ends[rank, "beats"][0], ends[rank, "beats"][1].process, ends[rank, "beats"][1].pid)
        for rank in range(1, size)
    ]


def meet(address: tuple[str, int], token: str, rank: int) -> tuple[socket.socket, socket.socket, Neighbour | None]:
    """A rank's connections to rank 0, for commands and for beats, and rank 0's process if it is of this machine.

    Raises OSError or ValueError where there is no rank 0.
    """
    ends: dict[Channel, socket.socket] = {}
    leader: Neighbour | None = None
    channels: tuple[Channel, ...] = ("commands", "beats")
    for channel in channels:
        end = socket.create_connection(address, HELLO_S)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.sendall(hello(token, rank, channel).line())
        said = receive_hello(end, START_S)
        if channel == "beats":
            leader = said.process
        ends[channel] = end
    return ends["commands"], ends["beats"], leader
