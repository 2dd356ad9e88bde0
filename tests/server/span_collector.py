"""Where a server sends its traces to."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class SpanCollector(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
    """An OTLP collector that keeps what it gets."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  (the protocol's name)
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
