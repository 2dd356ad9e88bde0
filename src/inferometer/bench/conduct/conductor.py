"""Runs a study's cases: a process a column, the columns of a row in turns, each case to a record whatever happens to it.

The rules. Cases of a row whose forecasts fit into 0.9 of the device's memory together are under way together: their models are loaded, then
each runs half of its runs, then in the opposite order the other half, so that drift meets all alike. Other cases run by themselves. Before
cases run, other processes keep their models only if those fit beside them as well, and else drop them; a case that ends oom although
others held memory is tried once more when none does. A process is replaced after a time-out, a crash, an oom of the allocator or an error
that its device keeps, and ends when no case is left for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from inferometer.bench.backends.entry import BackendEntry
from inferometer.bench.backends.registry import entry
from inferometer.bench.conduct.sharing import SHARE, together
from inferometer.bench.conduct.turn import Turn
from inferometer.bench.conduct.unrun import unrun
from inferometer.bench.conduct.worker_process import WorkerEndedError, WorkerProcess
from inferometer.bench.plan.plan import Planned
from inferometer.bench.records.failures import breaks_device, refused
from inferometer.bench.records.record import Record
from inferometer.bench.records.session import Session, bare_environment
from inferometer.estimate.memory import GPU_CONTEXT_BYTES

# Of a case's runs: two, so that the second can mirror the first.
_BLOCKS: Final = 2
_RELEASE_S: Final = 60.0
# What a process without a model may hold: workspaces of libraries.
_BARE_BYTES: Final = 256 << 20
# A forecast of memory is that of tensors; allocators hold some more.
_MARGIN: Final = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How cases are run. isolate: a process for each. budget_s: no case is begun after that, or if it is not expected to end by then."""

    isolate: bool = False
    budget_s: float | None = None


class BudgetSpentError(Exception):
    """There is no time for the next case."""


class Conductor:
    """Runs cases and hands every record to `emit` as soon as its case has ended. Close it to end its processes.

    oomed: columns of parts, by name, of which a record says that a case has run out of memory, those of this run's that have gone through
    `emit` included. start: makes the process of a backend.
    """

    def __init__(
        self,
        session: Session,
        conduct: Conduct,
        emit: Callable[[Record], None],
        *,
        study: str,
        oomed: Callable[[], Collection[tuple[str, str]]],
        start: Callable[[BackendEntry], WorkerProcess] = WorkerProcess,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts: Mapping[str, Any] = {**bare_environment(), **session.facts}
        self._conduct = conduct
        self._emit = emit
        self._study = study
        self._start = start
        self._clock = clock
        self._began = clock()
        self._ran = False
        self._workers: dict[tuple[object, ...], WorkerProcess] = {}
        self._oomed = oomed

    def run(self, plans: Sequence[Planned], *, later: Iterable[Planned] = ()) -> None:
        """Runs cases, rows in the order given. The processes of `later` are kept for it.

        Raises BudgetSpentError before a case that there is no time for, and what `emit` raises.
        """
        rows: dict[tuple[str, int], list[Planned]] = {}
        for planned in plans:
            rows.setdefault(planned.question.row, []).append(planned)
        coming = Counter(self._process(planned) for planned in (*plans, *later))
        for row in rows.values():
            self._row(row)
            coming.subtract(self._process(planned) for planned in row)
            for key in [key for key in self._workers if self._conduct.isolate or coming[key] <= 0]:
                self._drop(key)

    def close(self) -> None:
        """Ends all processes."""
        for key in list(self._workers):
            self._drop(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _row(self, plans: Sequence[Planned]) -> None:
        ready = []
        for planned in plans:
            question = planned.question
            if question.refusal is not None:
                self._take(planned, unrun(question, "skipped", question.refusal, self._facts))
            elif planned.forecast.impossible is not None and (question.cell.part, question.cell.column) in self._oomed():
                evidence = f"not tried after the oom of another case of the column: {planned.forecast.impossible}"
                self._take(planned, unrun(question, "oom", evidence, self._facts))
            else:
                ready.append(planned)
        if ready:
            for group in together([_need(planned) for planned in ready], self._room(ready[0])):
                self._group([ready[position] for position in group])

    def _group(self, plans: Sequence[Planned]) -> None:
        """Runs cases in turns; those that fail for want of memory that others held, again by themselves."""
        self._check_budget(plans)
        self._make_room(plans)
        for planned, _ in self._play(plans):
            self._release_others(planned)
            for again, record in self._play([planned]):
                self._take(again, record)  # whatever others still hold, it is not to be had

    def _play(self, plans: Sequence[Planned]) -> list[tuple[Planned, Record]]:
        """Takes one record for each case, but for those that it returns: they had less memory than they could have."""
        turns = [self._turn(planned, plans) for planned in plans]
        for turn in turns:
            turn.load()
        blocks = 1 if len(turns) == 1 else _BLOCKS
        crowded = []
        for number in range(blocks):
            for turn in turns if number % 2 == 0 else reversed(turns):
                request = turn.planned.question.request
                runs = _share(request.runs, blocks, number)
                if runs:
                    turn.run(warmups=request.warmups if number == 0 else min(request.warmups, 1), runs=runs)
                if number == blocks - 1:
                    turn.finish(shared=len(self._workers) > 1)
                    record = self._record(turn)
                    if record.status == "oom" and (len(turns) > 1 or self._others_hold(turn.planned)):
                        crowded.append((turn.planned, record))
                    else:
                        self._take(turn.planned, record)
        return crowded

    def _record(self, turn: Turn) -> Record:
        """The record of a turn that is over; its process ends if it is of no more use."""
        record = turn.record
        assert record is not None, "a turn that is over has a record"
        evidence = record.evidence or ""
        broken = record.status == "error" and breaks_device(evidence)
        if turn.ended or broken or (record.status == "oom" and not refused(evidence)):
            self._drop(self._process(turn.planned))
        return record

    def _others_hold(self, planned: Planned) -> bool:
        """Whether another process has a model in memory."""
        own = self._process(planned)
        return any(worker.resident_bytes > _BARE_BYTES for key, worker in self._workers.items() if key != own)

    def _take(self, planned: Planned, record: Record) -> None:
        cell = planned.question.cell
        self._ran = self._ran or record.status != "skipped"
        self._emit(replace(record, study=self._study, part=cell.part, column=cell.column))

    def _turn(self, planned: Planned, group: Sequence[Planned]) -> Turn:
        key = self._process(planned)
        if key not in self._workers:
            self._workers[key] = self._start(entry(planned.question.case.backend))
        beside = [other.question.cell.column for other in group if other is not planned]
        return Turn(planned, self._workers[key], {**self._facts, "beside": beside}, self._clock)

    def _process(self, planned: Planned) -> tuple[object, ...]:
        return (*planned.question.process, planned.question.key if self._conduct.isolate else None)

    def _check_budget(self, plans: Sequence[Planned]) -> None:
        budget_s = self._conduct.budget_s
        # The first is run whatever it takes, or a study whose cases are longer than its budget would never get on.
        if budget_s is None or not self._ran:
            return
        left_s = budget_s - (self._clock() - self._began)
        if left_s <= 0 or sum(planned.forecast.seconds or 0.0 for planned in plans) > left_s:
            raise BudgetSpentError

    def _room(self, planned: Planned) -> int | None:
        """Bytes that our processes may have together."""
        place = planned.question.place
        free = place.free_bytes()
        if free is None or place.kind != "cpu":
            return free
        return free + sum(worker.resident_bytes for worker in self._workers.values())

    def _make_room(self, plans: Sequence[Planned]) -> None:
        room, needs = self._room(plans[0]), [_need(planned) for planned in plans]
        bare = 0 if plans[0].question.place.kind == "cpu" else GPU_CONTEXT_BYTES  # of a host's memory, what is free says that
        own = {self._process(planned) for planned in plans}
        others = sum(worker.resident_bytes + bare for key, worker in self._workers.items() if key not in own)
        known = [need for need in needs if need is not None]
        if room is None or len(known) < len(needs) or sum(known) + others > SHARE * room:
            self._release(key for key in self._workers if key not in own)

    def _release_others(self, planned: Planned) -> None:
        own = self._process(planned)
        self._release(key for key in self._workers if key != own)

    def _release(self, keys: Iterable[tuple[object, ...]]) -> None:
        """Has processes drop their models; ends those that keep something all the same."""
        for key in list(keys):
            worker = self._workers[key]
            if worker.resident_bytes > _BARE_BYTES:
                with suppress(WorkerEndedError):
                    worker.release(_RELEASE_S)
                if worker.resident_bytes > _BARE_BYTES:
                    self._drop(key)

    def _drop(self, key: tuple[object, ...]) -> None:
        worker = self._workers.pop(key, None)
        if worker is not None:
            worker.close()


def _need(planned: Planned) -> int | None:
    peak = planned.forecast.peak_bytes
    return None if peak is None else round(_MARGIN * peak)


def _share(runs: int, blocks: int, number: int) -> int:
    """Runs of the block with that number."""
    return runs // blocks + (number < runs % blocks)
