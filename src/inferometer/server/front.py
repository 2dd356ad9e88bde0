"""The process that speaks HTTP once the engine's has been started: its event loop, from the model's loading to the last answer.

Imported while that one loads: what it needs of other packages takes a second.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn

from inferometer.engine.parallel.lifeline import Neighbour
from inferometer.errors import UserError
from inferometer.server.app import make_app
from inferometer.server.child import Child
from inferometer.server.connection import Connection, connections
from inferometer.server.engine_client import EngineClient
from inferometer.server.last_signal import hear_no_more
from inferometer.server.messages import Failed, Ready
from inferometer.server.observatory import Observatory
from inferometer.server.served_model import ServedModel
from inferometer.server.service import Service
from inferometer.server.settings import ServerSettings
from inferometer.server.step_prices import step_prices
from inferometer.server.traces import Tracer

LOG = logging.getLogger(__name__)

PING_SECONDS = 2.0
HUNG_SECONDS = 5.0
"""Without an answer to a ping for so long, a rank 0 that does not run counts as hung."""
TOLD_SECONDS = 0.5
"""How long after its process the last words of rank 0 may come."""
FLUSH_SECONDS = 1.0
"""How long answers that were cut off may take to be written, and clients that do not read them to be let go."""


class StartError(RuntimeError):
    """The engine could not be started, for no reason that a user could mend."""


class LostError(RuntimeError):
    """A rank of the model has failed while it was served."""


class Front:
    """One server's part of that."""

    def __init__(self, settings: ServerSettings, model: ServedModel, listener: socket.socket, child: Child, tracer: Tracer | None) -> None:
        self._settings = settings
        self._model = model
        self._listener = listener
        self._child = child
        self._tracer = tracer
        self._ending = asyncio.Event()
        self._now = asyncio.Event()

    def run(self) -> int:
        """Serves until a signal ends it. The exit code: 0 after a signal, 1 if the engine had died by then.

        Raises UserError or StartError where the engine could not be started, LostError where a model of several shards has lost one.
        """
        return _loop_runner()(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        # Of a server that is to outlive its terminal (nohup) SIGHUP stays ignored.
        gone = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)

        def told(*_: object) -> None:
            loop.call_soon_threadsafe(self._signalled)

        for number in (signal.SIGTERM, signal.SIGINT, *gone):
            # Not the loop's own handlers: when those go, signals have their defaults for a moment, in which one more ends the process.
            signal.signal(number, told)
        try:
            return await self._lived(loop)
        finally:
            hear_no_more()

    async def _lived(self, loop: asyncio.AbstractEventLoop) -> int:
        _, client = await loop.create_connection(EngineClient, sock=self._child.end)
        ready = await self._loaded(client)
        if ready is None:
            return 0
        observatory = Observatory(self._settings, ready, step_prices(self._model.spec, ready), self._tracer)
        client.observer = observatory.observer
        service = Service(self._settings, self._model, ready, client, observatory.observer)
        try:
            await self._serve(service, observatory)
        finally:
            service.close()
            died = client.gone
            client.stop()
        if client.lost.done():
            raise LostError(client.lost.result())
        return 1 if died else 0

    def _signalled(self) -> None:
        if self._ending.is_set():
            self._now.set()
        self._ending.set()

    async def _loaded(self, client: EngineClient) -> Ready | None:
        """What the engine loaded; None where a signal came first. Raises UserError or StartError."""
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait((client.ready, ending), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not client.ready.done():
            client.stop()
            self._child.process.kill()  # it may be in the middle of reading weights
            return None
        ready = client.ready.result()
        if isinstance(ready, Failed):
            raise UserError(ready.message) if ready.user else StartError(ready.message)
        return ready

    async def _serve(self, service: Service, observatory: Observatory) -> None:
        config = uvicorn.Config(
            make_app(service, observatory),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=connections(self._settings.client_seconds),
            server_header=False,
            timeout_keep_alive=75,
            backlog=2048,
        )
        server = _Uvicorn(config)
        # What was made so far lives as long as the process: a collection in the middle of a stream need not look at it.
        gc.collect()
        gc.freeze()
        self._listener.listen(config.backlog)  # from here on whoever connects is served, if not at once
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        pinging = asyncio.create_task(_ping(service.client))
        watch = self._watch if (self._settings.num_shard or 1) > 1 else self._tell
        watching = asyncio.create_task(watch(service.client))
        host, port = self._listener.getsockname()[:2]
        LOG.info("serving %s on http://%s:%d", service.model.name, f"[{host}]" if ":" in host else host, port)
        ends = (serving, asyncio.create_task(self._ending.wait()), service.client.lost)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await self._drain(service)
        server.should_exit = True
        await asyncio.wait((serving,), timeout=FLUSH_SECONDS)
        for each in list(server.server_state.connections):
            cast(Connection, each).cut_off()  # so that what was asked over it ends as where a client goes away, and not in the loop's end
        await asyncio.wait((serving,), timeout=FLUSH_SECONDS)
        server.force_exit = True
        await serving
        pinging.cancel()
        watching.cancel()

    async def _watch(self, client: EngineClient) -> None:
        """Finds out that rank 0 has ended, or does not answer: the others end with it by themselves."""
        process, hung = self._child.process, Neighbour(self._child.process.pid)
        while not client.lost.done():
            if client.gone and not client.lost.done():
                await asyncio.sleep(TOLD_SECONDS)  # it may have said why
                client.lose(f"rank 0 (process {process.pid}) has ended{self._how}")
            elif client.silent_seconds > HUNG_SECONDS and hung.stopped:
                process.kill()
                client.lose(f"rank 0 (process {process.pid}) has stopped answering")
            await asyncio.sleep(0.2)

    async def _tell(self, client: EngineClient) -> None:
        """Says in the log that an engine without other ranks has ended: the server stays, and answers that it is unhealthy."""
        while not client.gone:
            await asyncio.sleep(0.2)
        await asyncio.sleep(TOLD_SECONDS)  # until then its exit code may not be known
        LOG.error(
            "the engine (process %d) has ended%s: nothing is served any more, start the server again", self._child.process.pid, self._how
        )

    @property
    def _how(self) -> str:
        """By what the engine's process ended, as far as that is known."""
        code = self._child.process.poll()
        return "" if code is None else f" ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"

    async def _drain(self, service: Service) -> None:
        """Lets open requests finish, for drain_seconds or until a second signal; then cuts them off. Without an engine they have failed."""
        service.draining = True
        LOG.info("ending: sequences in flight: %d", service.permits.taken)
        back = asyncio.create_task(service.permits.all_back())
        now = asyncio.create_task(self._now.wait())
        lost, ends = service.client.lost, (back, now, service.client.lost)
        if not lost.done():
            await asyncio.wait(ends, timeout=self._settings.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():  # what was open has failed by now
            await asyncio.wait((back,), timeout=FLUSH_SECONDS)
        if not back.done():
            LOG.warning("sequences still in flight: %d; their requests are cut off", service.permits.taken)
            service.cut_off()
            await asyncio.wait((back,), timeout=FLUSH_SECONDS)
        back.cancel()
        now.cancel()


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: when this ends is ours to say."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing."""
        yield


async def _ping(client: EngineClient) -> None:
    while True:
        client.ping()
        await asyncio.sleep(PING_SECONDS)


def _loop_runner() -> Callable[[Coroutine[Any, Any, int]], int]:
    """asyncio.run, on uvloop where that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run
