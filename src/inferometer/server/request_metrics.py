"""Our own metrics of requests: what became of each, how long it took, and its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from inferometer.schedule.completion import FinishReason
from inferometer.server.buckets import DURATIONS
from inferometer.server.failures import Kind
from inferometer.server.generation import Generation
from inferometer.server.observer import Observer
from inferometer.server.trail import Trail, current

_NO_REQUEST: Final = frozenset({"not_found", "method_not_allowed", "authentication"})
"""What a request for work cannot end with: it has come to an address that does such work, by the right method and with the key."""


class RequestMetrics(Observer):
    """Counts into `registry`. Requests received are the sum over all outcomes, and those in flight.

    answered_in_full, not_answered: the outcomes in two numbers.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.answered_in_full = 0
        self.not_answered = 0

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"inferometer_{name}", what, labels, registry=registry)

        def seconds(name: str, what: str) -> Histogram:
            return Histogram(f"inferometer_{name}_seconds", what, buckets=DURATIONS, registry=registry)

        self._received = counter("requests_received", "Requests for a generation or an embedding")
        self._outcomes = counter("requests", "The same by what became of them: exactly one outcome each", "outcome")
        for outcome in ("success", "dropped", *(kind for kind in get_args(Kind) if kind not in _NO_REQUEST)):
            self._outcomes.labels(outcome)
        what = "HTTP responses of any kind, wrong addresses (route other), methods and keys among them, which ask for nothing"
        self._responses = counter("http_responses", what, "route", "status")
        self._sequences = counter("finished_sequences", "Sequences of the requests answered in full", "reason")
        for reason in get_args(FinishReason):
            self._sequences.labels(reason)
        self._prompts = counter("prompt_tokens", "Prompt tokens of the requests answered in full")
        self._generated = counter("generation_tokens", "Tokens generated for the requests answered in full")
        self._first = seconds("time_to_first_token", "From a request to its first token")
        self._whole = seconds("e2e_request_latency", "From a request to its answer's end")
        self._queue = seconds("request_queue_time", "From the engine's being told to a request's turn")
        self._prefill = seconds("request_prefill_time", "From a request's turn to its first token")
        self._decode = seconds("request_decode_time", "From a request's first token to its last")
        self._permits = Gauge("inferometer_permits", "Sequences that may be in flight", registry=registry)
        self._taken = Gauge("inferometer_permits_in_use", "Sequences in flight", registry=registry)

    def answered(self, trail: Trail) -> None:
        """A response begins."""
        self._responses.labels(trail.route, str(trail.status)).inc()

    def received(self, path: str) -> None:
        """One more."""
        self._received.inc()

    def refused(self, kind: Kind) -> None:
        """Its outcome."""
        self.not_answered += 1
        self._outcomes.labels(kind).inc()

    def dropped(self) -> None:
        """Its outcome."""
        self.not_answered += 1
        self._outcomes.labels("dropped").inc()

    def succeeded(self, generations: Sequence[Generation]) -> None:
        """Its outcome, its times and tokens. An embedding has no turn and generates nothing."""
        trail = current()
        self.answered_in_full += 1
        self._outcomes.labels("success").inc()
        self._prompts.inc(trail.prompt_tokens or 0)
        self._whole.observe(trail.seconds)
        if not generations:
            return
        self._generated.inc(trail.generated_tokens)
        for generation in generations:
            if generation.finish_reason is not None:
                self._sequences.labels(generation.finish_reason).inc()
        started, first, last = trail.started, trail.first_token, trail.last_token
        if started is not None and first is not None and last is not None:
            self._first.observe(first - trail.began)
            self._queue.observe(trail.queue_s or 0.0)
            self._prefill.observe(first - started)
            self._decode.observe(last - first)

    def set_permits(self, taken: int, total: int) -> None:
        """The gauges."""
        self._taken.set(taken)
        self._permits.set(total)
