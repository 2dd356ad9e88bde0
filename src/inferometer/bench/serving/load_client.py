"""Sends requests to a server on a schedule and watches their streams: so many at a time, or at random moments at a rate."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from inferometer.bench.serving.dialect import Dialect, Piece
from inferometer.bench.serving.http_connection import Address, Connection, HttpError
from inferometer.bench.serving.served_request import Arrival, ServedRequest
from inferometer.bench.serving.serving import ClientCost
from inferometer.bench.serving.sse import EventParser, StreamError

_ERROR_BYTES = 400


class Advance(Protocol):
    """Told of every request that has ended."""

    def __call__(self, count: int = 1) -> None: ...


@dataclass(frozen=True, slots=True)
class Watched:
    """The measured requests in the order in which they were due, and what the client took for them."""

    requests: tuple[ServedRequest, ...]
    client: ClientCost


class LoadClient:
    """Of one server, in one dialect. seconds: how long a request may take. clock: seconds, that of time.perf_counter()."""

    def __init__(self, address: Address, dialect: Dialect, *, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._address = address
        self._dialect = dialect
        self._seconds = seconds
        self._clock = clock

    async def closed_loop(self, bodies: Sequence[bytes], *, concurrency: int, warmups: int, advance: Advance) -> Watched:
        """`concurrency` requests at any time, the next sent when one has ended, until none is left. The first `warmups` do not count.

        There is no pause behind them, in which the load would have to build up anew.
        """
        done: dict[int, ServedRequest] = {}
        meter = _Meter(warmups)
        waiting = iter(range(len(bodies)))

        async def worker() -> None:
            connection = Connection(self._address)
            try:
                for place in waiting:
                    meter.begin(place)
                    done[place] = await self.ask(connection, bodies[place], self._clock())
                    advance()
            finally:
                connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(bodies))):
                group.create_task(worker())
        return Watched(tuple(done[place] for place in range(warmups, len(bodies))), meter.end())

    async def poisson(self, bodies: Sequence[bytes], *, rate_s: float, seed: int, warmups: int, advance: Advance) -> Watched:
        """Requests at moments of a Poisson process of `rate_s` a second, whatever the server does with them."""
        draw = random.Random(f"{seed}/arrivals")
        idle: list[Connection] = []
        done: dict[int, ServedRequest] = {}
        meter = _Meter(warmups)
        due = self._clock()

        async def one(place: int, due_s: float) -> None:
            connection = idle.pop() if idle else Connection(self._address)
            done[place] = await self.ask(connection, bodies[place], due_s)
            idle.append(connection)
            advance()

        try:
            async with asyncio.TaskGroup() as group:
                for place in range(len(bodies)):
                    due += draw.expovariate(rate_s)
                    await asyncio.sleep(max(due - self._clock(), 0))
                    meter.begin(place)
                    group.create_task(one(place, due))
        finally:
            for connection in idle:
                connection.close()
        return Watched(tuple(done[place] for place in range(warmups, len(bodies))), meter.end())

    async def ask(self, connection: Connection, body: bytes, due_s: float) -> ServedRequest:
        """One request and its stream. Whatever goes wrong with it is in its `failure`."""
        sent = self._clock()
        arrivals: list[Arrival] = []
        last = Piece()
        failure: tuple[str, str] | None = None
        try:
            async with asyncio.timeout(self._seconds):
                last = await self._watch(connection, body, arrivals)
        except TimeoutError:
            failure = "timeout", f"no end within {self._seconds:g} s"
        except _RefusedError as error:
            failure = error.kind, str(error)
        except (HttpError, StreamError) as error:
            failure = "stream", str(error)
        except (OSError, ssl.SSLError) as error:
            failure = "connection", f"{type(error).__name__}: {error}"
        if failure is not None:
            connection.close()  # what is left of the answer must not be taken for the next one's
        elif not arrivals:
            failure = "empty", "the stream ended without a token"
        total = last.total
        if total is None and all(arrival.tokens is not None for arrival in arrivals):
            total = sum(arrival.tokens or 0 for arrival in arrivals)
        return ServedRequest(
            due_s=due_s, sent_s=sent, ended_s=self._clock(), arrivals=tuple(arrivals), total=total,
            prompt_tokens=last.prompt, failure=failure,
        )  # fmt: skip

    async def _watch(self, connection: Connection, body: bytes, arrivals: list[Arrival]) -> Piece:
        """Fills `arrivals`; returns the piece that ended the stream."""
        head = await connection.send(self._address.request("POST", self._dialect.path, body))
        async with aclosing(connection.body(head)) as pieces:
            if head.status != 200:
                said = b""
                async for piece in pieces:
                    said = (said + piece)[:_ERROR_BYTES]
                raise _RefusedError(f"http {head.status}", " ".join(said.decode("utf-8", "replace").split()))
            parser, reading = EventParser(), self._dialect.reading()
            ended: Piece | None = None
            async for piece in pieces:
                now = self._clock()  # of the bytes, not of when we come round to them
                counts: list[int | None] = []
                for event in parser.feed(piece):
                    found = reading.take(event)
                    if found.error is not None:
                        raise _RefusedError("server", found.error[:_ERROR_BYTES])
                    if found.tokens != 0:
                        counts.append(found.tokens)
                    ended = found if found.ends else ended
                if counts:
                    known = [count for count in counts if count is not None]
                    arrivals.append(Arrival(now, sum(known) if len(known) == len(counts) else None, len(counts)))
        if ended is None:
            raise StreamError("the stream ended before its last event")
        return ended


class _RefusedError(Exception):
    """The server answered, and not with what was asked."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words or kind)
        self.kind = kind


class _Meter:
    """The client's own cost, from when the first measured request is due."""

    def __init__(self, warmups: int) -> None:
        self._warmups = warmups
        self._cpu = self._wall = 0.0

    def begin(self, place: int) -> None:
        """Before each request is sent."""
        if place == self._warmups:
            self._cpu, self._wall = time.process_time(), time.perf_counter()

    def end(self) -> ClientCost:
        """After the last one."""
        return ClientCost(time.process_time() - self._cpu, time.perf_counter() - self._wall)
