"""What the estimator expects of a question before it is asked: how long, how much memory, and whether it can fit at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from inferometer.bench.backends.registry import stack_of
from inferometer.bench.plan.question import Question
from inferometer.bench.prediction.priced import estimator_arguments, reads_disk
from inferometer.errors import UserError
from inferometer.estimate.estimate import Estimate, estimate
from inferometer.model.byte_size import gib

# A case is checked with one forward pass or two and a few steps beside its own work, which is at most as much as two runs of it.
_CHECK_FORWARDS: Final = 2
_CHECK_STEPS: Final = 4
# What a first run compiles is not in the forecast.
_LEAST_LIMIT_S: Final = 240.0
_LIMIT_FACTOR: Final = 20.0
_UNKNOWN_LIMIT_S: Final = 900.0
# For its energy each phase is repeated for so long, where a counter can tell it: by a GPU; those of processors are seldom readable.
_ENERGY_S: Final = 2.0
# Weights made or read slowly, as from a disk.
_LOAD_BYTES_S: Final = 100e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Unknown is None. run_s: one run. seconds: all runs, warm-ups and the check. peak_bytes: on one device, with what a process takes
    outside its tensors. least_bytes: what no implementation can do without, weights and the cache of sequences that must be together.
    weight_bytes: those that a process loads, on one device. largest_batch: the most sequences of such lengths that are expected to fit
    into the whole device. capacity_bytes: what there is, or is allowed.
    """

    run_s: float | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    least_bytes: int | None = None
    weight_bytes: int | None = None
    largest_batch: int | None = None
    capacity_bytes: int | None = None

    @property
    def impossible(self) -> str | None:
        """Why it cannot fit whatever is done; None if it may."""
        if self.least_bytes is None or self.capacity_bytes is None or self.least_bytes <= self.capacity_bytes:
            return None
        return f"weights and KV cache alone need {gib(self.least_bytes, digits=1)}, and {gib(self.capacity_bytes, digits=1)} are there"

    @property
    def too_much(self) -> str | None:
        """Why it is not expected to fit; None if it is, or nobody knows."""
        if self.peak_bytes is None or self.capacity_bytes is None or self.peak_bytes <= self.capacity_bytes:
            return None
        return f"{gib(self.peak_bytes, digits=1)} are expected to be needed, and {gib(self.capacity_bytes, digits=1)} are there"

    @property
    def expected(self) -> Literal["ok", "oom"]:
        """How it is expected to end."""
        return "ok" if self.too_much is None and self.impossible is None else "oom"

    @property
    def time_limit_s(self) -> float:
        """After how long the question counts as hung."""
        loading = 0.0 if self.weight_bytes is None else self.weight_bytes / _LOAD_BYTES_S
        if self.seconds is None:
            return _UNKNOWN_LIMIT_S + loading
        return _LEAST_LIMIT_S + loading + _LIMIT_FACTOR * self.seconds


def forecast(question: Question) -> Forecast:
    """The estimator's answer; all unknown for a device that the catalogue lacks, or a backend or model that it cannot price."""
    case, place = question.case, question.place
    capacity = min((limit for limit in (place.memory_bytes, case.memory_limit) if limit is not None), default=None)
    stack = stack_of(case.backend)
    if question.spec is None or place.spec is None or stack is None:
        return Forecast(capacity_bytes=capacity)
    try:
        found = estimate(
            question.spec,
            place.spec,
            **estimator_arguments(case, stack),
            admission=case.admission,
            group_size=case.group_size if case.admission is not None else None,
            num_groups=case.num_groups if case.admission is not None else None,
        )
    except UserError:
        return Forecast(capacity_bytes=capacity)
    if reads_disk(case, question.spec, found.request.formats):
        return Forecast(peak_bytes=found.memory.device_bytes, weight_bytes=found.memory.weights, capacity_bytes=capacity)
    run_s = (found.forward_ms if case.forward_only else found.total_ms or 0.0) or 0.0
    run_s /= 1e3
    runs = question.request.runs + question.request.warmups
    phases = 0 if place.kind == "cpu" or not question.request.energy else 1 if case.forward_only else 2
    return Forecast(
        run_s=run_s,
        seconds=runs * run_s + _check_s(found, run_s) + phases * (_ENERGY_S + run_s),
        peak_bytes=found.memory.device_bytes,
        least_bytes=_least_bytes(found),
        weight_bytes=found.memory.weights,
        largest_batch=found.fit.largest_batch,
        capacity_bytes=capacity,
    )


def _check_s(found: Estimate, run_s: float) -> float:
    if found.prefill_ms is None or found.decode_token_ms is None:
        return _CHECK_FORWARDS * run_s
    return min(_CHECK_FORWARDS * run_s, (_CHECK_FORWARDS * found.prefill_ms + _CHECK_STEPS * found.decode_token_ms) / 1e3)


def _least_bytes(found: Estimate) -> int:
    """Groups may take turns, so that of an admission only the weights are certain."""
    held = found.memory.weights
    return held if found.request.order is not None else held + found.memory.kv
