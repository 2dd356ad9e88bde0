"""Processes that are none: they answer a conductor as a column's process does, from a script of how cases end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from inferometer.bench.backends.entry import BackendEntry
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.conduct.worker_process import Answer, WorkerEndedError
from inferometer.bench.machine.place import Place
from inferometer.bench.plan.plan import Planned, plan
from inferometer.bench.plan.question import Question, questions
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Record, Throughput, throughput, work
from inferometer.bench.records.statistics import Summary
from inferometer.bench.study.file import read_study
from inferometer.hardware.catalogue import find_device

GIB = 1 << 30
WEIGHTS = 3 * GIB
CPU = find_device("cpu")

Outcome = str | Exception
"""ok, or "STATUS: evidence" that a process answers; an exception is raised in place of an answer."""


def place(device: str = "cuda", memory_bytes: int | None = 24 * GIB) -> Place:
    """A card that never was, or this CPU."""
    if device == "cpu":
        return Place(torch_name="cpu", slug="cpu", name="c", spec=CPU, count=1, memory_bytes=GIB, multiplies=("float32",))
    spec = replace(find_device("l4"), memory_bytes=memory_bytes or GIB, visible_memory_bytes=None)
    return Place(torch_name="cuda:0", slug="l4", name="x", spec=spec, count=1, memory_bytes=memory_bytes, multiplies=("float32", "float16"))


HERE = place()
"""That card."""


def asked(more: str = "", where: Place = HERE, *, columns: str = '[[part.columns]]\nname = "one"\nbackend = "native"\n') -> list[Question]:
    """What a study of one part asks there.

    more: settings of all its cases.
    """
    text = f"""
title = "t"
[fixed]
model = "opt-1.3b"
weights = "dummy"
dtype = "fp16"
batch_size = 4
{more}
[[part]]
name = "p"
{columns}
"""
    return questions(read_study(text, "mine", "mine.toml").study(), lambda device: where)


@cache
def plans_of(text: str, memory_bytes: int | None = 24 * GIB) -> list[Planned]:
    """The plan of a study on that card; not to be changed."""
    return plan(read_study(text, "mine", "mine.toml").study(), lambda device: place(memory_bytes=memory_bytes))


@dataclass
class Clock:
    """Seconds that pass only when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Workshop:
    """Makes processes, keeps a log of what each was asked, and knows how each case ends.

    outcome(case, others) is asked when a case begins; others: bytes that the other processes hold. Every step takes `step_s` of `clock`;
    `kept_bytes` stay with a process that drops its model.
    """

    outcome: Callable[[Case, int], Outcome] = lambda case, others: "ok"
    clock: Clock = field(default_factory=Clock)
    step_s: float = 1.0
    kept_bytes: int = 0
    made: list[FakeWorker] = field(default_factory=list)
    log: list[tuple[Any, ...]] = field(default_factory=list)

    def __call__(self, backend: BackendEntry) -> FakeWorker:
        worker = FakeWorker(self, len(self.made))
        self.made.append(worker)
        return worker

    def steps(self, name: str) -> list[tuple[Any, ...]]:
        """The log's entries of one step."""
        return [entry[1:] for entry in self.log if entry[0] == name]


class FakeWorker:
    """One process, numbered from 0 in the order of making."""

    def __init__(self, shop: Workshop, number: int) -> None:
        self.shop, self.number = shop, number
        self.resident_bytes = 0
        self.closed = False
        self._request: BenchRequest | None = None
        self._case: Case | None = None
        self._runs = 0

    def load(self, request: BenchRequest, memory_limit: int | None, limit_s: float) -> Answer:
        self._note("load", request.model)
        self._request, self._runs, self.resident_bytes = request, 0, WEIGHTS
        return Answer(self.resident_bytes)

    def begin(self, case: Case, limit_s: float) -> Answer:
        self._note("begin", case.backend, case.batch_size)
        self._case = case
        others = sum(other.resident_bytes for other in self.shop.made if other is not self and not other.closed)
        outcome = self.shop.outcome(case, others)
        if isinstance(outcome, WorkerEndedError):
            raise outcome
        if isinstance(outcome, Exception):
            return Answer(self.resident_bytes, skipped=str(outcome))
        return Answer(self.resident_bytes) if outcome == "ok" else Answer(self.resident_bytes, record=self._record(outcome).to_json())

    def run(self, *, warmups: int, runs: int, limit_s: float) -> Answer:
        assert self._case is not None
        self._note("run", self._case.backend, self._case.batch_size, warmups, runs)
        self._runs += runs
        return Answer(self.resident_bytes)

    def finish(self, *, shared: bool, limit_s: float) -> Answer:
        assert self._request is not None
        assert self._runs == self._request.runs, "a case ends after as many runs as it was asked for"
        self._note("finish", shared)
        return Answer(self.resident_bytes, record=self._record("ok").to_json())

    def release(self, limit_s: float) -> Answer:
        self._note("release")
        self.resident_bytes = self.shop.kept_bytes
        return Answer(self.resident_bytes)

    def close(self) -> None:
        assert not self.closed, "a process ends once"
        self.closed = True
        self.shop.log.append(("close", self.number))

    def _note(self, *entry: Any) -> None:
        assert not self.closed, "nobody asks a process that has ended"
        self.shop.log.append((entry[0], self.number, *entry[1:]))
        self.shop.clock.now += self.shop.step_s

    def _record(self, outcome: str) -> Record:
        case, request = self._case, self._request
        assert case is not None
        assert request is not None
        return record_of(case, request, outcome)


def record_of(case: Case, request: BenchRequest, outcome: str = "ok", environment: Mapping[str, Any] | None = None) -> Record:
    """A record of a case that ended that way."""
    common = {**case.asked, "started_at": "2026-01-01T00:00:00.000+00:00", "stack_version": "1", "gpus": 1, "warmups": request.warmups}
    common |= {"runs": request.runs, "environment": environment or {"torch": "its own"}}
    status, _, evidence = outcome.partition(": ")
    if status != "ok":
        return Record(**common, status=status, evidence=evidence, throughput=Throughput())
    prefill, decode = [10.0] * request.runs, [40.0] * request.runs
    times = {
        "prefill_ms": Summary.of(prefill),
        "decode_total_ms": Summary.of(decode),
        "decode_token_ms": Summary.of(each / case.steps for each in decode),
        "total_ms": Summary.of([50.0] * request.runs),
    }
    counted = {name: times.get(name) for name in ("prefill_ms", "decode_total_ms", "total_ms", "forward_ms")}
    rates = throughput(work(batch_size=case.batch_size, sequence_length=case.sequence_length, steps=case.steps, **counted))
    return Record(**common, status="ok", throughput=rates, **times)
