"""Responses: JSON, streams of events, and the watch over clients that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inferometer.server.failures import ApiError, ClientGoneError, body_of, status_of

KEEP_ALIVE_SECONDS: Final = 15.0
"""How often an idle stream carries a comment, so that nothing on the way takes it for dead."""

T = TypeVar("T")

encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
"""Plain data as compact JSON. Raises ValueError for numbers that JSON has no way to write."""


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON document."""
    return Response(encode(content).encode("utf-8"), status, dict(headers or {}), media_type="application/json")


def error_response(error: ApiError, path: str) -> Response:
    """A failure, in the dialect of its path."""
    return json_response(body_of(error, path), status_of(error, path), error.headers)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. Cancels it, waits for its end and raises ClientGoneError where the client closes its connection before.

    The request's body must have been read.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.wait((task, watch))
        if not task.cancelled():
            task.exception()  # seen


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events: `events` yields whole events as bytes, one write each. It is closed however the stream ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._idle = False
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Writes the stream; ends early where the client has gone."""
        writer = asyncio.create_task(self._write(send))
        watch = asyncio.create_task(self._watch(receive, send))
        try:
            await asyncio.wait((writer, watch), return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            for each in (writer, watch):
                each.cancel()
            await asyncio.wait((writer, watch))
            await self._events.aclose()
            for each in (writer, watch):
                if not each.cancelled():
                    each.exception()  # seen: of a client that has gone, or raised above

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._events:
            self._idle = False
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Returns when the client has gone; meanwhile keeps an idle stream alive."""
        gone = asyncio.create_task(_gone(receive))
        try:
            while True:
                self._idle = True
                done, _ = await asyncio.wait((gone,), timeout=KEEP_ALIVE_SECONDS)
                if done:
                    return
                if self._idle:
                    await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
        finally:
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone
