"""Spans are sent beside the requests, and whatever goes wrong there stays there."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from running_server import SOURCE

from inferometer.errors import UserError
from inferometer.server.traces import Tracer, WatchedExporter, make_tracer
from inferometer.server.trail import Trail


class Moody(SpanExporter):
    """Fails as it is told to."""

    def __init__(self, *moods: SpanExportResult | Exception) -> None:
        self._moods = iter(moods)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        mood = next(self._moods)
        if isinstance(mood, Exception):
            raise mood
        return mood


def test_a_failing_collector_is_told_once_and_its_return_too(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    exporter = WatchedExporter(Moody(good, bad, RuntimeError("secret"), bad, good, good), "http://there:1")
    with caplog.at_level(logging.INFO):
        assert [exporter.export([]) for _ in range(6)] == [good, bad, bad, bad, good, good]
    assert [record.getMessage() for record in caplog.records] == [
        "traces do not reach http://there:1; requests are served without",
        "traces reach http://there:1 again",
    ]


@pytest.mark.parametrize("parent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-00", "\x00\xff", "x" * 100_000])
def test_any_header_starts_a_trace_of_its_own(parent: str) -> None:
    kept = InMemorySpanExporter()
    tracer = Tracer(kept, "m")
    tracer.record(Trail("POST", "/generate", parent=(parent, parent), status=200, outcome="success"))
    tracer.close()
    (span,) = kept.get_finished_spans()
    assert span.parent is None
    assert span.status.status_code is StatusCode.UNSET
    assert span.name == "POST /generate"


@pytest.mark.parametrize(("status", "outcome"), [(500, "internal"), (200, "generation"), (None, "dropped")])
def test_what_failed_is_marked(status: int | None, outcome: str) -> None:
    kept = InMemorySpanExporter()
    tracer = Tracer(kept, "m")
    tracer.record(Trail("POST", "/generate_stream", status=status, outcome=outcome))  # type: ignore[arg-type]
    tracer.close()
    (span,) = kept.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    "endpoint",
    [
        *("http://", "ftp://host:1", "http://host:port", "http://host:0", "http://host:99999", "://", ""),
        *("foo", "foo:", "foo/bar", "a b:4317", "http://a b"),
    ],
)
def test_what_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(UserError, match=r"--otlp-endpoint .* is no address; give one like http://localhost:4317"):
        make_tracer(endpoint, "m")


def test_a_server_with_no_address_for_its_traces_does_not_start() -> None:
    words = ("serve", "opt-125m", "--weights", "dummy", "--device", "cpu", "--port", "0", "--otlp-endpoint", "foo")
    command, environment = [sys.executable, "-m", "inferometer", *words], {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["inferometer: error: --otlp-endpoint 'foo' is no address; give one like http://localhost:4317"]


@pytest.mark.parametrize("endpoint", ["http://localhost:4317", "localhost:4317", "https://collector.example", "http://[::1]:4317/"])
def test_addresses_are_taken_without_asking_whether_anybody_is_there(endpoint: str) -> None:
    tracer = make_tracer(endpoint, "m")
    assert tracer is not None
    tracer.close()


def test_without_an_endpoint_there_are_no_traces() -> None:
    assert make_tracer(None, "m") is None
