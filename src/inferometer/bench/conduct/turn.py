"""One case under way in its column's process, within its time limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from inferometer.bench.conduct.unrun import unrun
from inferometer.bench.conduct.worker_process import Answer, WorkerEndedError, WorkerProcess
from inferometer.bench.plan.plan import Planned
from inferometer.bench.records.record import Record


class Turn:
    """`record` is there once the case has ended. `ended` then says that its process is of no more use.

    facts: what the record's environment is to say beside what the process says.
    """

    def __init__(self, planned: Planned, worker: WorkerProcess, facts: Mapping[str, Any], clock: Callable[[], float]) -> None:
        self.planned = planned
        self.record: Record | None = None
        self.ended = False
        self._worker = worker
        self._facts = facts
        self._clock = clock
        self._left_s = planned.limit_s

    def load(self) -> None:
        """Loads the model, makes room and checks the backend."""
        question = self.planned.question
        self._step(lambda limit_s: self._worker.load(question.request, question.case.memory_limit, limit_s))
        self._step(lambda limit_s: self._worker.begin(question.case, limit_s))

    def run(self, *, warmups: int, runs: int) -> None:
        """A block of runs."""
        self._step(lambda limit_s: self._worker.run(warmups=warmups, runs=runs, limit_s=limit_s))

    def finish(self, *, shared: bool) -> None:
        """The record. shared: whether other processes of the study use the device."""
        self._step(lambda limit_s: self._worker.finish(shared=shared, limit_s=limit_s))

    def _step(self, step: Callable[[float], Answer]) -> None:
        if self.record is not None:
            return
        begin = self._clock()
        try:
            answer = step(self._left_s)
        except WorkerEndedError as error:
            self.ended = True
            self.record = unrun(self.planned.question, error.status, self._evidence(error), self._facts)
            return
        self._left_s = max(self._left_s - (self._clock() - begin), 0.0)
        if answer.skipped is not None:
            self.record = unrun(self.planned.question, "skipped", answer.skipped, self._facts)
        elif answer.record is not None:
            found = Record.from_json(answer.record)
            # A server says itself what it runs, and so is asked another question than was known before.
            asked = self.planned.question.case.case_id
            self.record = replace(found, case_id=asked, environment={**self._facts, **found.environment})

    def _evidence(self, error: WorkerEndedError) -> str:
        if error.status != "timeout":
            return error.evidence
        whose = "from its forecast" if self.planned.question.timeout_s is None else "as asked"
        return f"no end within {self.planned.limit_s:g} s ({whose}), {error.evidence}"
