"""Our own metrics of the engine: its load, its steps beside what they should and must take, and the gaps between tokens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from inferometer.server.buckets import DURATIONS, Tally
from inferometer.server.generation import Generation
from inferometer.server.messages import Load, Ready, Step
from inferometer.server.observer import Observer
from inferometer.server.step_prices import StepPrice, StepPrices
from inferometer.server.sweep_clock import SweepClock

WINDOW_SECONDS: Final = 10.0
"""What "now" is, where a rate is meant."""

IDLE: Final = Load(0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0)


@dataclass(slots=True)
class Totals:
    """What has been so far: only grows. Seconds are of the engine's steps, whole and as priced.

    emitted: tokens that the engine has told, also for requests that were not answered in full. computed: prompt tokens that it ran.
    """

    steps: int = 0
    emitted: int = 0
    computed: int = 0
    hits: int = 0
    preemptions: int = 0
    failed_steps: int = 0
    step_s: float = 0.0
    bound_s: float = 0.0
    memory_bound_s: float = 0.0
    predicted_s: float = 0.0
    memory_s: float = 0.0
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """The last seconds. Shares are of the time in which the engine had work; None where it had none, or where nothing was priced.

    mbu, mfu: what the bytes that must move, and the FLOPs, would take alone, over the time that steps took.
    """

    generated_tok_s: float
    prompt_tok_s: float
    busy: float
    step_ms: float | None
    bound_ms: float | None
    predicted_ms: float | None
    mbu: float | None
    mfu: float | None
    binds: str | None


class EngineMetrics(Observer, Collector):
    """Counts steps, and hands out what it has counted. prices: None where nothing can be priced. later: runs what it is given soon."""

    def __init__(self, clock: SweepClock, ready: Ready, prices: StepPrices | None, later: Callable[[Callable[[], None]], object]) -> None:
        self.load = IDLE
        self.totals = Totals()
        self._clock = clock
        self._ready = ready
        self._prices = prices
        self._later = later
        self._unpriced: list[tuple[Load, float]] = []
        self._gaps = Tally(DURATIONS)
        self._past: deque[tuple[float, Totals]] = deque([(time.monotonic(), Totals())])
        self._shown = (self.load, Totals(), self.rates())

    @property
    def basis(self) -> str | None:
        """What bounds are computed from; None where there are none."""
        return None if self._prices is None else self._prices.basis

    def step(self, step: Step, generations: Collection[Generation], now: float) -> None:
        """One step."""
        self._remember()
        for generation in generations:
            before = generation.times.arrived
            if before is not None:
                self._gaps.add(now - before)
        load, totals = step.load, self.totals
        # The engine's own counters begin anew where a failed step made it drop everything.
        totals.hits += load.hit_tokens - self.load.hit_tokens if load.hit_tokens >= self.load.hit_tokens else load.hit_tokens
        totals.preemptions += max(0, load.preemptions - self.load.preemptions)
        totals.emitted += len(step.request_ids)
        self.load = load
        over = self._clock.pair(load)
        if over is not None:
            self._unpriced.append(over)
            if len(self._unpriced) == 1:
                self._later(self._settle)

    def broken(self, *, prompts: bool) -> None:
        """The engine has dropped everything."""
        self.totals.failed_steps += 1
        self.load = IDLE

    def rates(self) -> Rates:
        """Of the last WINDOW_SECONDS."""
        now = time.monotonic()
        self._settle()
        self._remember()
        before, then = next((entry for entry in self._past if now - entry[0] <= WINDOW_SECONDS), self._past[-1])
        past, seconds = self.totals, max(1e-3, now - before)
        steps, spent = past.steps - then.steps, past.step_s - then.step_s
        bound, predicted = past.bound_s - then.bound_s, past.predicted_s - then.predicted_s
        priced = self._prices is not None and steps > 0 and spent > 0
        by_memory = past.memory_bound_s - then.memory_bound_s
        return Rates(
            generated_tok_s=(past.emitted - then.emitted) / seconds,
            prompt_tok_s=(past.computed - then.computed) / seconds,
            busy=min(1.0, spent / seconds),
            step_ms=spent / steps * 1e3 if steps else None,
            bound_ms=bound / steps * 1e3 if priced else None,
            predicted_ms=predicted / steps * 1e3 if priced else None,
            mbu=(past.memory_s - then.memory_s) / spent if priced else None,
            mfu=(past.compute_s - then.compute_s) / spent if priced else None,
            binds=("memory" if 2 * by_memory >= bound else "compute") if priced else None,
        )

    def show(self) -> None:
        """What `collect` hands out, on any thread, is what there is now."""
        rates = self.rates()
        self._shown = (self.load, copy(self.totals), rates)

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        (load, totals, rates), ready = self._shown, self._ready
        gaps = HistogramMetricFamily("inferometer_inter_token_latency_seconds", "Between two tokens of a sequence, as they come")
        gaps.add_metric([], self._gaps.cumulative(), self._gaps.sum)
        yield gaps
        for name, what, value in (
            ("requests_running", "Sequences that run", load.running),
            ("requests_waiting", "Sequences that wait for a seat", load.waiting),
            ("seats", "Sequences that can run together", ready.seats),
            ("kv_pages", "Pages of the KV cache", ready.pages),
            ("kv_pages_in_use", "Pages that sequences hold", load.pages_in_use),
            ("kv_page_tokens", "Tokens of a page", ready.page_size),
            ("kv_page_bytes", "Bytes of a page", ready.page_bytes),
            ("busy_ratio", f"Share of the last {WINDOW_SECONDS:g} s in which the engine had work", rates.busy),
        ):
            yield GaugeMetricFamily(f"inferometer_{name}", what, value)
        for name, what, value in (
            ("preemptions", "Sequences that lost their pages and were computed again", totals.preemptions),
            ("prefix_cache_hit_tokens", "Prompt tokens that the prefix cache had", totals.hits),
            ("computed_prompt_tokens", "Prompt tokens that the engine computed", totals.computed),
            ("emitted_tokens", "Tokens that the engine emitted, also for requests not answered in full", totals.emitted),
            ("steps", "Steps of the engine", totals.steps),
            ("failed_steps", "Steps that failed and took their requests with them", totals.failed_steps),
            ("step_seconds", "Seconds that the steps took", totals.step_s),
        ):
            yield CounterMetricFamily(f"inferometer_{name}", what, value)
        if self._prices is None:
            return
        for name, what, value in (
            ("step_bound_seconds", "Least seconds for their work on this device", totals.bound_s),
            ("step_predicted_seconds", "Seconds that were to be expected", totals.predicted_s),
            ("step_memory_seconds", "Seconds that the bytes which must move take at full bandwidth", totals.memory_s),
            ("step_compute_seconds", "Seconds that the FLOPs take at full rate", totals.compute_s),
        ):
            family = CounterMetricFamily(f"inferometer_{name}", f"Of the steps: {what}", labels=["basis"])
            family.add_metric([self._prices.basis], value)
            yield family
        for name, what, share in (
            ("mbu_ratio", "Memory bandwidth utilisation of the steps", rates.mbu),
            ("mfu_ratio", "FLOP utilisation of the steps", rates.mfu),
        ):
            gauge = GaugeMetricFamily(f"inferometer_{name}", f"{what}, last {WINDOW_SECONDS:g} s; 0 without any", labels=["basis"])
            gauge.add_metric([self._prices.basis], share or 0.0)
            yield gauge

    def _settle(self) -> None:
        """Prices what has not been priced: behind the tokens that came with it, which should not wait for that."""
        unpriced, self._unpriced = self._unpriced, []
        for load, seconds in unpriced:
            self._account(load, seconds)

    def _account(self, load: Load, seconds: float) -> None:
        totals = self.totals
        totals.steps += 1
        totals.step_s += seconds
        totals.computed += load.prompt_tokens
        if self._prices is not None:
            price: StepPrice = self._prices.price(load)
            totals.bound_s += price.bound_s
            totals.memory_bound_s += price.memory_bound_s
            totals.predicted_s += price.predicted_s
            totals.memory_s += price.memory_s
            totals.compute_s += price.compute_s

    def _remember(self) -> None:
        """Keeps what was, about once a second, for as long as `rates` looks back."""
        now = time.monotonic()
        if now - self._past[-1][0] >= 1.0:
            self._past.append((now, copy(self.totals)))
            while self._past[0][0] < now - WINDOW_SECONDS - 2 and len(self._past) > 1:
                self._past.popleft()
