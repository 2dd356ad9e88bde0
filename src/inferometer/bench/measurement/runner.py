"""Runs cases: backends take turns run by run, so that what disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch

from inferometer.bench.backends.backend import Backend, Prompts, Reference
from inferometer.bench.machine.environment import telemetry
from inferometer.bench.machine.memory import bounded_host, release_caches
from inferometer.bench.measurement.answers import Answers
from inferometer.bench.measurement.check import ReferenceFailedError, check
from inferometer.bench.measurement.column import Column, Failure, Unopened
from inferometer.bench.measurement.effort import Effort
from inferometer.bench.measurement.energy import EnergyMeter
from inferometer.bench.measurement.peak_memory import PeakMeter
from inferometer.bench.measurement.progress import Progress, Silent
from inferometer.bench.measurement.timed_run import timed_run
from inferometer.bench.prediction.outlook import Outlook
from inferometer.bench.records.case import Case
from inferometer.bench.records.failures import during, evidence_of, status_of
from inferometer.bench.records.record import Checked, Record

_CHECK_STEPS = 4
_CHECK_TOKENS = 32
_MOST_UNSTEADY = 4
_MOST_UNSTEADY_S = 30.0


@dataclass(frozen=True, slots=True)
class Round:
    """The same workload on one or more backends, under way: a column for each that is open, and the prompts that all get."""

    cases: Sequence[Case]
    columns: Sequence[Column]
    prompts: Prompts
    started: datetime

    @property
    def failed(self) -> bool:
        """Whether nothing is left to run."""
        return all(column.failure is not None for column in self.columns)


class Runner:
    """Runs the cases of one model on one device.

    `backends` by name, of which at least one is open. `prompts_for(batch_size, sequence_length)` gives the rows that every backend
    gets. `reference` is the one of them that the others are checked against, each against itself if there is none. `context_limit` is
    the model's, None if it has none. `outlook_of` gives a case's bound and prediction, `sizes_of` the
    bytes that it is about. `clock` returns seconds.
    """

    def __init__(
        self,
        backends: Mapping[str, Backend | Unopened],
        prompts_for: Callable[[int, int], Prompts],
        effort: Effort,
        *,
        reference: Reference | None = None,
        device: torch.device,
        dtype: torch.dtype,
        context_limit: int | None,
        outlook_of: Callable[[Case], Outlook] = lambda case: Outlook(),
        sizes_of: Callable[[Case], Mapping[str, int] | None] = lambda case: None,
        clock: Callable[[], float] = time.perf_counter,
        progress: Progress | None = None,
    ) -> None:
        self._open = {name: backend for name, backend in backends.items() if not isinstance(backend, Unopened)}
        self._unopened = {name: backend for name, backend in backends.items() if isinstance(backend, Unopened)}
        self._prompts_for = prompts_for
        self._effort = effort
        self._reference = reference
        self._device = device
        self._dtype = dtype
        self._context_limit = context_limit
        self._clock = clock
        self._progress = progress or Silent()
        self._telemetry = telemetry(device)
        self._answers = Answers(effort, device, outlook_of, sizes_of)

    def run(self, rounds: Sequence[Sequence[Case]], emit: Callable[[Record], None]) -> list[Record]:
        """Runs `rounds`, each the same workload on one or more backends, and hands every record to `emit` as soon as it is there.

        A case that fails does not stop the others; its record says of what it failed.
        """
        self._progress.start(sum(len(cases) for cases in rounds) * (self._effort.runs + self._effort.warmups))
        records = []
        for cases in rounds:
            with bounded_host(self._device):
                done = self._round(cases)
            for record in done:
                emit(record)
                records.append(record)
        return records

    def _round(self, cases: Sequence[Case]) -> list[Record]:
        turn = self.begin(cases)
        for cycle in range(self._effort.warmups + self._effort.runs):
            self.cycle(turn, measured=cycle >= self._effort.warmups)
        return self.end(turn)

    def begin(self, cases: Sequence[Case]) -> Round:
        """Makes room for the same workload on one or more backends, and checks them. What fails is in the round's columns."""
        alone = len(self._open) == 1
        columns = [
            Column(case, self._open[case.backend], PeakMeter(self._device, alone=alone), EnergyMeter.of(self._device, case.tensor_parallel))
            for case in cases
            if case.backend in self._open
        ]
        started = datetime.now(UTC)
        prompts = self._reserve(columns)
        for column in columns:
            if column.failure is None:
                self._attempt(column, self._prepare, prompts)
        return Round(cases, columns, prompts, started)

    def cycle(self, turn: Round, *, measured: bool) -> None:
        """One run on each backend that has not failed."""
        for column in turn.columns:
            if column.failure is None:
                self._attempt(column, self._cycle, turn.prompts, measured)
            self._progress.advance()

    def end(self, turn: Round) -> list[Record]:
        """A record for each case, after as many measured cycles as the effort says."""
        done = {column.case.backend: self._answers.of(column, turn.started) for column in turn.columns}
        return [
            done.get(case.backend) or self._answers.of_unopened(case, self._unopened[case.backend], turn.started) for case in turn.cases
        ]

    def _reserve(self, columns: Sequence[Column]) -> Prompts:
        """The prompts, made only where a backend has room for the whole batch: that of millions of rows takes minutes to make."""
        for column in columns:
            self._attempt(column, self._take_room)
        ready = [column for column in columns if column.failure is None]
        if not ready:
            return []
        try:
            return self._prompts_for(ready[0].case.batch_size, ready[0].case.prompt_length)
        except MemoryError as error:
            evidence = Failure("oom", evidence_of(error))
        for column in ready:
            column.failure = evidence
            column.backend.abandon()
        return []

    def _take_room(self, column: Column) -> None:
        case = column.case
        if case.decode_length is not None:
            with during("while room was made"):
                column.backend.prepare(case.batch_size, case.row_tokens)

    def _attempt(self, column: Column, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(column, *arguments)
            return
        except Exception as error:  # noqa: BLE001  (whatever a stack raises is that case's result, and the others still run)
            column.failure = Failure(status_of(error), evidence_of(error))
        if column.failure.status == "oom" and len(self._open) > 1:
            others = ", ".join(name for name in self._open if name != column.case.backend)
            column.failure = Failure("oom", f"{column.failure.evidence} (the weights of {others} were on the device as well)")
        # Only now, when the traceback no longer holds the failed run's tensors, can their memory be had back.
        try:
            column.backend.abandon()
        except Exception as error:  # noqa: BLE001
            column.failure = Failure("error", f"{column.failure.evidence}; and then {evidence_of(error)}")
        release_caches(self._device)

    def _prepare(self, column: Column, prompts: Prompts) -> None:
        with during("in the check before the first run"):
            column.checked = self._check(column, prompts)
        if column.case.decode_length is None:
            column.backend.abandon()  # the cache that the check may have taken
        release_caches(self._device)
        if not column.checked.passed:
            error = "not finite" if column.checked.max_error is None else f"error {column.checked.max_error:.3g}"
            evidence = f"the correctness check failed: {column.checked.method}: {error}, tolerance {column.checked.tolerance:g}"
            column.failure = Failure("error", evidence)

    def _check(self, column: Column, prompts: Prompts) -> Checked:
        if self._reference is not None and self._reference is not column.backend:
            try:
                return self._compare(column, self._reference, prompts)
            except ReferenceFailedError:
                # That is the reference's own case's result. What it would have shown, the backend's other path shows.
                release_caches(self._device)
        return self._compare(column, None, prompts)

    def _compare(self, column: Column, reference: Reference | None, prompts: Prompts) -> Checked:
        case, backend = column.case, column.backend
        if case.decode_only:
            # What fills the context is not the model's, so there is nothing to compare there; short rows show whether the model is right.
            prompts = [prompt[:_CHECK_TOKENS] for prompt in prompts]
        steps = 0
        if not backend.encoder and (not case.forward_only or reference is None):
            steps = min(_CHECK_STEPS, case.decode_length or _CHECK_STEPS)
            if self._context_limit is not None:
                steps = min(steps, self._context_limit)
                prompts = [prompt[: self._context_limit - steps + 1] for prompt in prompts]
        # A batch that is to be timed decodes as a whole: its size and its admission decide what runs.
        together = len(prompts) if case.decode_length is not None else 1
        dtype = getattr(backend, "coarsest", self._dtype)
        return check(backend, reference, prompts, dtype=dtype, steps=steps, loss=case.loss, together=together)

    def _cycle(self, column: Column, prompts: Prompts, measured: bool) -> None:
        while True:
            column.meter.start(column.backend.resident_bytes)
            before, made = _link_bytes(column.backend), _preparations(column.backend)
            times = timed_run(column.case, column.backend, prompts, self._clock)
            if column.case.forward_only:
                # Of every run: where one is recorded, what later ones compute lies in memory that it has taken.
                column.meter.stop()
            if not measured:
                return
            taken = column.unsteady_s + times.all
            if _preparations(column.backend) == made or column.unsteady == _MOST_UNSTEADY or taken > _MOST_UNSTEADY_S:
                break
            column.unsteady, column.unsteady_s = column.unsteady + 1, taken
        pages = column.backend.page_use()
        column.meter.stop(pages)
        after = _link_bytes(column.backend)
        column.add(times, pages, None if before is None or after is None else after - before)
        if column.measured == self._effort.runs:
            column.sensors = self._telemetry.read().to_json()
        if self._effort.energy and column.measured == self._effort.runs:
            column.energy.measure(column.case, column.backend, prompts)


def _link_bytes(backend: Backend) -> int | None:
    """What has come from the host so far, for a backend that says so."""
    found: int | None = getattr(backend, "link_bytes", None)
    return found


def _preparations(backend: Backend) -> int:
    """How much the backend has made so far that later runs find, for one that says so."""
    found: int = getattr(backend, "preparations", 0)
    return found
