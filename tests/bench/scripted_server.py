"""A server that says exactly what a test tells it to, in its own thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

Script = Callable[[str, Any, int], Sequence[bytes | float | None]]
"""Of (method and path, JSON body, number of the request): pieces to send one by one, seconds to wait, None to drop the connection."""


def answer(value: Any, status: int = 200) -> list[bytes]:
    """A JSON document."""
    body = json.dumps(value).encode()
    return [f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body]


def chunk(raw: bytes) -> bytes:
    """One chunk of a chunked body."""
    return f"{len(raw):x}\r\n".encode() + raw + b"\r\n"


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def stream(*events: Any, done: bool = True) -> list[bytes]:
    """A stream of events, each in a piece of its own; [DONE] and the end of the body behind them."""
    sent = [chunk(b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n") for event in events]
    return [STREAM, *sent, *([chunk(b"data: [DONE]\n\n"), END] if done else [END])]


class ScriptedServer:
    """Serves on a free port. A context manager. seen: (method and path, body) of every request, in the order of their arrival.

    most: how many requests it had at once, at the most.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seen: list[tuple[str, Any]] = []
        self.connections = 0
        self.most = self._now = 0
        self.port = 0

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                what = " ".join(head.split(" ", 2)[:2])
                lengths = [int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")]
                raw = await reader.readexactly(lengths[0]) if lengths else b"null"
                body = json.loads(raw)
                self.seen.append((what, body))
                self._now += 1
                self.most = max(self.most, self._now)
                try:
                    for piece in self._script(what, body, len(self.seen)):
                        if piece is None:
                            return
                        if isinstance(piece, float):
                            await asyncio.sleep(piece)
                            continue
                        writer.write(piece)
                        await writer.drain()
                        await asyncio.sleep(0)
                finally:
                    self._now -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
