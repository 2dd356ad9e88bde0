"""All that watches a server: metrics, logs and traces, wired to what it watches."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, generate_latest

from inferometer.server.engine_metrics import EngineMetrics
from inferometer.server.messages import Ready
from inferometer.server.observer import Observer, Observers
from inferometer.server.request_metrics import RequestMetrics
from inferometer.server.service import Service
from inferometer.server.settings import ServerSettings
from inferometer.server.step_prices import StepPrices
from inferometer.server.sweep_clock import SweepClock
from inferometer.server.tgi_metrics import TgiMetrics
from inferometer.server.traces import Tracer
from inferometer.server.trail import Trail
from inferometer.server.trail_keeper import TrailKeeper
from inferometer.server.watch import log_request

_SUFFIX = re.compile(rb"(?m)^((?:# (?:HELP|TYPE) )?tgi_\w+?)_total(?=[ {])")
"""text-generation-inference's counters do without the suffix that the client library gives to all."""


class Observatory:
    """Watches one server. `observer` is what the service and the engine's client tell everything to."""

    def __init__(self, settings: ServerSettings, ready: Ready, prices: StepPrices | None, tracer: Tracer | None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        behind = ready.device.startswith("cuda")
        self._requests = RequestMetrics(self._registry)
        self._tgi = TgiMetrics(self._registry, settings, SweepClock(behind=behind))
        self.engine = EngineMetrics(SweepClock(behind=behind), ready, prices, asyncio.get_running_loop().call_soon)
        self._registry.register(self.engine)
        ProcessCollector(registry=self._registry)
        self._keeper = TrailKeeper(Observers((self._requests, self._tgi, self.engine)))
        self._tracer = tracer

    @property
    def observer(self) -> Observer:
        """To be told what happens."""
        return self._keeper

    @property
    def ended(self) -> list[Callable[[Trail], None]]:
        """To be called with every request's trail at its end."""
        return [log_request] if self._tracer is None else [log_request, self._tracer.record]

    def answered(self, trail: Trail) -> None:
        """A response begins."""
        self._keeper.answered(trail)
        self._requests.answered(trail)

    def outcomes(self) -> dict[str, int]:
        """Requests answered in full, and others that have ended."""
        return {"success": self._requests.answered_in_full, "not_answered": self._requests.not_answered}

    async def exposition(self, service: Service) -> bytes:
        """All metrics as Prometheus reads them. Written in a thread: two thousand lines are more than streams should wait for."""
        self._tgi.set_load(*service.client.committed())
        self._requests.set_permits(service.permits.taken, service.permits.total)
        self.engine.show()
        return _SUFFIX.sub(rb"\1", await asyncio.to_thread(generate_latest, self._registry))
