"""A client of `benchmarks/server.py`, in a process of its own: streams what it is told to and says when every token came.

Reads one JSON object from standard input: port, path, bodies, and `order`: "together" (all at once), "one by one", or "beside" (all but
the last at once, and the last when every other one has `lead` tokens). Writes {"streams": [{"sent", "tokens"}, ...]} to standard output,
times in seconds of this process's clock.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

EVENT = b'data:{"'
"""How an event begins. Inside an event a quotation mark has a backslash before it, so this is nowhere else."""


class Stream:
    """One request and the times of its tokens. Raises RuntimeError for an answer that is no stream of tokens."""

    def __init__(self, port: int, path: str, body: dict[str, Any]) -> None:
        self.sent = 0.0
        self.tokens: list[float] = []
        self.changed = asyncio.Event()
        data = json.dumps(body).encode()
        head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {len(data)}"]
        self._request = "\r\n".join([*head, "Connection: close", "", ""]).encode() + data
        self._port = port

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.sent = time.perf_counter()
        writer.write(self._request)
        tail, first = b"", b""
        while piece := await reader.read(65536):
            now = time.perf_counter()
            first = first or piece
            seen = tail + piece
            self.tokens += [now] * seen.count(EVENT)
            tail = seen[-(len(EVENT) - 1) :]
            self.changed.set()
        writer.close()
        if not first.startswith(b"HTTP/1.1 200") or b'"error"' in first:
            raise RuntimeError(first[:500].decode("utf-8", "replace"))

    async def reach(self, count: int) -> None:
        """Returns when so many tokens are here."""
        while len(self.tokens) < count:
            self.changed.clear()
            await self.changed.wait()


async def run(job: dict[str, Any]) -> list[Stream]:
    streams = [Stream(job["port"], job["path"], body) for body in job["bodies"]]
    match job["order"]:
        case "one by one":
            for stream in streams:
                await stream.run()
        case "together":
            await asyncio.gather(*[stream.run() for stream in streams])
        case "beside":
            *others, last = streams
            running = [asyncio.create_task(stream.run()) for stream in others]
            await asyncio.gather(*[stream.reach(job["lead"]) for stream in others])
            await asyncio.gather(last.run(), *running)
    return streams


if __name__ == "__main__":
    streams = asyncio.run(run(json.load(sys.stdin)))
    json.dump({"streams": [{"sent": stream.sent, "tokens": stream.tokens} for stream in streams]}, sys.stdout)
