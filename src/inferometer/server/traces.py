"""OpenTelemetry traces: a span a request, with one each for its wait, its prompt and its tokens. No text of it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from inferometer import __version__
from inferometer.errors import UserError, shown
from inferometer.server.trail import Trail

LOG = logging.getLogger(__name__)

SERVICE_NAME: Final = "text-generation-inference.router"
"""What text-generation-inference calls itself, so that what is built on its traces finds ours. OTEL_SERVICE_NAME overrides it."""

CLOSE_SECONDS: Final = 2.0
"""How long the end of a server may wait for a collector."""


class Tracer:
    """Sends spans through `exporter` from a thread of its own. What it cannot take is thrown away: no request ever waits for it."""

    def __init__(self, exporter: SpanExporter, model: str) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME") or SERVICE_NAME
        resource = Resource.create({"service.name": name, "service.version": __version__, "gen_ai.request.model": model})
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("inferometer", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, trail: Trail) -> None:
        """The spans of a request that is over. It continues the trace of a client that sent a `traceparent`."""
        carrier = dict(zip(("traceparent", "tracestate"), trail.parent, strict=True))
        span = self._tracer.start_span(
            f"{trail.method} {trail.route}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=attributes(trail),
            start_time=trail.began_ns,
        )
        failed = trail.status is None or trail.status >= 500 or trail.outcome in ("generation", "incomplete_generation", "internal")
        span.set_status(Status(StatusCode.ERROR if failed else StatusCode.UNSET))
        inside = set_span_in_context(span)
        started, first, last = trail.started, trail.first_token, trail.last_token
        submitted = min([each.times.submitted for each in trail.generations], default=None)
        for name, begin, end in (("queue", submitted, started), ("prefill", started, first), ("decode", first, last)):
            if begin is not None and end is not None:
                self._tracer.start_span(name, context=inside, start_time=_ns(trail, begin)).end(_ns(trail, end))
        span.end(_ns(trail, trail.ended or trail.began))

    def close(self) -> None:
        """Sends what is left, unless that takes more than CLOSE_SECONDS."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


class WatchedExporter(SpanExporter):
    """`exporter`, saying once when it fails and once when it works again, and never raising."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._works = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """As the inner one."""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is no request's fault)
            LOG.debug("%s", type(error).__name__)
            result = SpanExportResult.FAILURE
        works = result is SpanExportResult.SUCCESS
        if works != self._works:
            self._works = works
            if works:
                LOG.info("traces reach %s again", self._endpoint)
            else:
                LOG.warning("traces do not reach %s; requests are served without", self._endpoint)
        return result

    def shutdown(self) -> None:
        """As the inner one."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """As the inner one."""
        return self._exporter.force_flush(timeout_millis)


def make_tracer(endpoint: str | None, model: str) -> Tracer | None:
    """A tracer to an OTLP collector over gRPC; None without an endpoint.

    Raises UserError for one that is no address, and where the exporter is not installed. Whether anybody listens there is not asked.
    """
    if endpoint is None:
        return None
    address = endpoint if "://" in endpoint else f"http://{endpoint}"
    try:
        parts = urlsplit(address)
        complete = parts.scheme in ("http", "https") and _is_host(parts.hostname) and parts.port != 0
        # A bare name has no port by any convention, and what is no name of a host looks like one.
        complete = complete and ("://" in endpoint or parts.port is not None)
    except ValueError:
        complete = False
    if not complete:
        raise UserError(f"--otlp-endpoint {shown(endpoint)} is no address; give one like http://localhost:4317")
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise UserError(
            "--otlp-endpoint needs opentelemetry-exporter-otlp-proto-grpc: pip install 'inferometer[server]', or leave the flag out"
        ) from None
    # The exporter's own word on every failed try would fill the log; WatchedExporter says it once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    exporter = OTLPSpanExporter(endpoint=address, insecure=parts.scheme == "http", timeout=5)
    return Tracer(WatchedExporter(exporter, endpoint), model)


def attributes(trail: Trail) -> dict[str, AttributeValue]:
    """What a request's span says of it: times in milliseconds, numbers of tokens, how it ended."""
    started, last = trail.started, trail.last_token
    inference = None if started is None or last is None else last - started
    first = trail.first_token
    found: dict[str, AttributeValue | None] = {
        "http.request.method": trail.method,
        "http.route": trail.route,
        "http.response.status_code": trail.status,
        "request_id": trail.request_id,
        "outcome": trail.outcome,
        "total_time_ms": trail.seconds * 1e3,
        "validation_time_ms": _ms(trail.validation_s),
        "queue_time_ms": _ms(trail.queue_s),
        "inference_time_ms": _ms(inference),
        "time_to_first_token_ms": _ms(None if first is None else first - trail.began),
        "time_per_token_ms": None if inference is None else inference * 1e3 / max(1, trail.generated_tokens),
        "max_new_tokens": trail.max_new_tokens,
        "gen_ai.usage.input_tokens": trail.prompt_tokens,
        "gen_ai.usage.output_tokens": trail.generated_tokens if trail.generations else None,
        "finish_reasons": [str(each.finish_reason) for each in trail.generations] or None,
        "seed": trail.generations[0].request.seed if trail.generations and trail.generations[0].request.params.samples else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _is_host(name: str | None) -> bool:
    return bool(name) and not any(character.isspace() for character in name or "")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _ns(trail: Trail, moment: float) -> int:
    return trail.began_ns + int((moment - trail.began) * 1e9)
