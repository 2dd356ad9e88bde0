"""text-generation-inference's metrics, by its names, labels and buckets.

Where this engine has nothing of the kind: a sweep that runs any prompt tokens counts as `prefill`, and `tgi_batch_concat` is always for
`backpressure`, as nobody waits for a number of steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from inferometer.server.buckets import BATCH_SIZES, DURATIONS, hundred_steps
from inferometer.server.failures import Kind, is_openai
from inferometer.server.generation import Generation
from inferometer.server.messages import Load, Step
from inferometer.server.observer import Observer
from inferometer.server.settings import ServerSettings
from inferometer.server.sweep_clock import SweepClock
from inferometer.server.trail import current

_ERRORS: Final[Mapping[Kind, str]] = MappingProxyType(
    {
        "validation": "validation",
        "not_found": "validation",
        "method_not_allowed": "validation",
        "payload_too_large": "validation",
        "unsupported_media_type": "validation",
        "timeout": "validation",
        "authentication": "validation",
        "overloaded": "overloaded",
        "generation": "generation",
        "healthcheck": "generation",
        "internal": "generation",
        "incomplete_generation": "incomplete",
    }
)
"""`err` of tgi_request_failure for everything that can go wrong."""


class TgiMetrics(Observer):
    """Counts into `registry`. Counters' names get the `_total` that the client library insists on; `Exposition` takes it away."""

    def __init__(self, registry: CollectorRegistry, settings: ServerSettings, clock: SweepClock) -> None:
        self._clock = clock
        self._requests = Counter("tgi_request_count", "Requests", registry=registry)
        self._success = Counter("tgi_request_success", "Requests answered in full", registry=registry)
        self._failure = Counter("tgi_request_failure", "Requests that were not", ["err"], registry=registry)
        for err in ("overloaded", "validation", "generation", "incomplete", "dropped"):
            self._failure.labels(err)
        self._batches = {
            part: Counter(f"tgi_batch_inference_{part}", f"Sweeps through the model: {part}", ["method"], registry=registry)
            for part in ("count", "success", "failure")
        }
        self._concat = Counter("tgi_batch_concat", "Sweeps at which requests joined others that ran", ["reason"], registry=registry)
        for reason in ("backpressure", "wait_exceeded"):
            self._concat.labels(reason)
        self._batch_time = Histogram("tgi_batch_inference_duration", "Seconds of a sweep", ["method"], buckets=DURATIONS, registry=registry)
        for method in ("prefill", "decode"):
            self._batch_time.labels(method)
            for each in self._batches.values():
                each.labels(method)
        self._queue = Gauge("tgi_queue_size", "Requests that wait for their turn", registry=registry)
        self._size = Gauge("tgi_batch_current_size", "Requests that run", registry=registry)
        self._tokens = Gauge("tgi_batch_current_max_tokens", "Tokens that the requests that run may come to hold", registry=registry)
        self._next = Histogram("tgi_batch_next_size", "Requests whose turn came together", buckets=BATCH_SIZES, registry=registry)

        def seconds(name: str, of: str) -> Histogram:
            return Histogram(f"tgi_request_{name}", f"Seconds of {of}", buckets=DURATIONS, registry=registry)

        self._total = seconds("duration", "a request")
        self._validation = seconds("validation_duration", "checking and tokenising a request")
        self._waited = seconds("queue_duration", "waiting for a turn")
        self._inference = seconds("inference_duration", "a request's turn")
        self._per_token = seconds("mean_time_per_token_duration", "a request's turn for each of its tokens")

        def tokens(name: str, what: str, most: int) -> Histogram:
            return Histogram(f"tgi_request_{name}", what, buckets=hundred_steps(most), registry=registry)

        self._generated = tokens("generated_tokens", "Tokens generated for a request", settings.total_tokens)
        self._input = tokens("input_length", "Prompt tokens of a request", settings.input_length)
        self._most = tokens("max_new_tokens", "Tokens that a request may generate", settings.total_tokens)

    def received(self, path: str) -> None:
        """One more."""
        self._requests.inc()

    def validated(self, seconds: float, prompt_tokens: int, max_new_tokens: int) -> None:
        """Its lengths."""
        self._input.observe(prompt_tokens)
        self._most.observe(max_new_tokens)

    def refused(self, kind: Kind) -> None:
        """One failure."""
        self._failure.labels(_ERRORS[kind]).inc()

    def dropped(self) -> None:
        """One failure."""
        self._failure.labels("dropped").inc()

    def succeeded(self, generations: Sequence[Generation]) -> None:
        """One success with its times. An embedding has neither turn nor tokens."""
        trail = current()
        self._success.inc()
        self._total.observe(trail.seconds)
        self._validation.observe(trail.validation_s or 0.0)
        self._waited.observe(trail.queue_s or 0.0)
        # Of several sequences, what text-generation-inference's client is told of is the best one.
        counted = generations if is_openai(trail.route) else generations[:1]
        tokens = sum([len(generation.tokens) for generation in counted])
        started, last = trail.started, trail.last_token
        inference = 0.0 if started is None or last is None else last - started
        self._inference.observe(inference)
        self._per_token.observe(inference / max(1, tokens))
        self._generated.observe(tokens)

    def step(self, step: Step, generations: Collection[Generation], now: float) -> None:
        """One sweep."""
        if step.started:
            self._next.observe(len(step.started))
            if step.load.running > len(step.started):
                self._concat.labels("backpressure").inc()
        over = self._clock.pair(step.load)
        if over is not None:
            method = _method(over[0])
            self._batches["count"].labels(method).inc()
            self._batches["success"].labels(method).inc()
            self._batch_time.labels(method).observe(over[1])

    def broken(self, *, prompts: bool) -> None:
        """One failed sweep."""
        method = "prefill" if prompts else "decode"
        self._batches["count"].labels(method).inc()
        self._batches["failure"].labels(method).inc()

    def set_load(self, waiting: int, running: int, tokens: int) -> None:
        """The gauges."""
        self._queue.set(waiting)
        self._size.set(running)
        self._tokens.set(tokens)


def _method(load: Load) -> str:
    return "prefill" if load.prompt_tokens else "decode"
