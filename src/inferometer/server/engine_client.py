"""The server's side of the engine: sends commands, hands out what comes back, and knows whether anybody is there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import cast

from inferometer.server.failures import ApiError, failed, invalid
from inferometer.server.frames import FrameReader, frame
from inferometer.server.generation import Generation
from inferometer.server.messages import (
    Abort,
    Add,
    Broken,
    Command,
    Embed,
    Embedded,
    Event,
    Failed,
    Lost,
    Ping,
    Pong,
    Ready,
    Refused,
    Step,
    Stop,
)
from inferometer.server.observer import Observer

LOG = logging.getLogger(__name__)

SILENCE_SECONDS = 10.0
"""After so long without any word, pings included, the engine's process counts as stopped."""


class EngineClient(asyncio.Protocol):
    """One engine, seen from the HTTP process.

    observer: told of every step, behind its generations, and of failed ones; nobody until it is set.
    ready: resolves to what was loaded, or to the reason why nothing was. broken: a step has failed and none has succeeded since.
    gone: the process has ended, or closed its side. lost: resolves to why nothing can be served any more, where a model of several ranks
    has lost one.
    """

    def __init__(self) -> None:
        self.ready: asyncio.Future[Ready | Failed] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.broken = False
        self.gone = False
        self._ended: Callable[[], ApiError] | None = None
        self.observer = Observer()
        self._reader = FrameReader()
        self._generations: dict[int, Generation] = {}
        self._embeddings: dict[int, asyncio.Future[Embedded]] = {}
        self._transport: asyncio.Transport | None = None
        self._heard = self._progress = time.monotonic()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of the engine's."""
        self._heard = time.monotonic()
        for event in self._reader.feed(data):
            self._hand_out(cast(Event, event))

    def connection_lost(self, error: Exception | None) -> None:
        """The process has ended."""
        self.gone = True
        if not self.ready.done():
            self.ready.set_result(Failed("the engine's process ended while it loaded the model", user=False))
        self.fail_all(failed)

    # What the server calls.

    def submit(self, generations: Iterable[Generation]) -> None:
        """Queues requests. They fail at once if the engine is gone."""
        many = list(generations)
        if not self._pending:
            self._progress = time.monotonic()  # the time without work was no standstill
        self._generations.update({each.request.id: each for each in many})
        self._send(Add(tuple(each.request for each in many)))
        if self.gone:
            self.fail_all(failed)
        elif self._ended is not None:
            self.fail_all(self._ended)

    def drop(self, generation: Generation) -> None:
        """Forgets a request; the engine drops it, unless it knows that it has ended."""
        if self._generations.pop(generation.request.id, None) is not None:
            self._send(Abort((generation.request.id,)))

    async def embed(self, command: Embed) -> Embedded:
        """The vectors of some texts. Raises ApiError. Where nobody waits for them any longer, the engine drops them if it can."""
        if self.gone:
            raise failed()
        if self._ended is not None:
            raise self._ended()
        if not self._pending:
            self._progress = time.monotonic()
        answer: asyncio.Future[Embedded] = asyncio.get_running_loop().create_future()
        self._embeddings[command.request_id] = answer
        self._send(command)
        try:
            return await answer
        except asyncio.CancelledError:
            self._send(Abort((command.request_id,)))
            raise
        finally:
            self._embeddings.pop(command.request_id, None)

    def ping(self) -> None:
        """Asks for a sign of life."""
        self._send(Ping())

    def stop(self) -> None:
        """Tells the engine to end."""
        self._send(Stop())

    def lose(self, reason: str) -> None:
        """Ends everything that is open, for good. Of several reasons the first counts."""
        if not self.lost.done():
            self.lost.set_result(reason)
        self.gone = True
        self.fail_all(failed)

    def end_all(self, reason: Callable[[], ApiError]) -> None:
        """Ends everything that is open, and whatever is still on its way here."""
        self._ended = reason
        self.fail_all(reason)

    def fail_all(self, reason: Callable[[], ApiError]) -> None:
        """Ends everything that is open."""
        for generation in list(self._generations.values()):
            generation.fail(reason())
        self._generations.clear()
        for answer in self._embeddings.values():
            if not answer.done():
                answer.set_exception(reason())

    @property
    def _pending(self) -> bool:
        return bool(self._generations or self._embeddings)

    def committed(self) -> tuple[int, int, int]:
        """(requests that wait for their turn, requests whose turn has come, tokens that the latter may come to hold)."""
        running = [each.request for each in self._generations.values() if each.times.started is not None]
        return len(self._generations) - len(running), len(running), sum([request.tokens for request in running])

    @property
    def silent_seconds(self) -> float:
        """Since when nothing was heard."""
        return time.monotonic() - self._heard

    @property
    def stalled_seconds(self) -> float:
        """For how long work has been pending without a step; 0 without work."""
        return time.monotonic() - self._progress if self._pending else 0.0

    def _send(self, command: Command) -> None:
        if self._transport is not None and not self.gone:
            self._transport.write(frame(command))

    def _hand_out(self, event: Event) -> None:
        match event:
            case Step():
                self._progress = self._heard
                self.broken = False
                self._step(event)
            case Pong():
                pass
            case Ready() | Failed():
                if not self.ready.done():
                    self.ready.set_result(event)
            case Refused(request_id, message):
                self._end(request_id, invalid(message))
            case Broken(request_ids, message):
                LOG.error("a step failed and took %d requests with it: %s", len(request_ids), message)
                self._progress = self._heard
                self.broken = True
                lost = [self._generations[request_id] for request_id in request_ids if request_id in self._generations]
                self.observer.broken(prompts=any(generation.times.arrived is None for generation in lost))
                for request_id in request_ids:
                    self._end(request_id, failed())
            case Lost(message):
                self.lose(message)
            case Embedded(request_id):
                self._progress = self._heard
                self.broken = False
                answer = self._embeddings.get(request_id)
                if answer is not None and not answer.done():
                    answer.set_result(event)

    def _step(self, step: Step) -> None:
        generations, extras = self._generations, step.extras
        now = time.perf_counter()
        for request_id, cached in step.started:
            generation = generations.get(request_id)
            if generation is not None:
                generation.start(cached, now - step.load.sweep_ms / 1e3)  # at the step's beginning
        touched: dict[int, Generation] = {}
        for place, request_id in enumerate(step.request_ids):
            generation = generations.get(request_id)
            if generation is None:
                continue  # dropped, which the engine did not know yet
            extra = extras.get(place)
            generation.push(step.token_ids[place], step.logprobs[place], extra)
            touched[request_id] = generation
            if extra is not None and extra.finish_reason is not None:
                del generations[request_id]
        for generation in touched.values():
            generation.wake()
        self.observer.step(step, touched.values(), now)
        for generation in touched.values():
            generation.times.arrived = now

    def _end(self, request_id: int, error: ApiError) -> None:
        generation = self._generations.pop(request_id, None)
        if generation is not None:
            generation.fail(error)
        answer = self._embeddings.get(request_id)
        if answer is not None and not answer.done():
            answer.set_exception(error)
