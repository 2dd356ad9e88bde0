"""Cases of several parts of a study that are the same work: measured once, with a record for each part.

Twins are equal in their column's name, in their case and in what is asked of its run: the backend's request with its effort, the place, the
time limit, and the reason where none is run. The record of one is, under another part's name, the record of the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from inferometer.bench.plan.plan import Planned
from inferometer.bench.plan.question import Question
from inferometer.bench.records.record import Record
from inferometer.bench.study.folder import Key

SAME_RUN: Final = "same_run_as"
"""In the environment of a record: the part whose case was run in its place."""


Work = tuple[object, ...]
"""What is done for a question, whichever part asks it."""


class Twins:
    """The twins among a study's questions."""

    def __init__(self, asked: Iterable[Question]) -> None:
        works: dict[Work, dict[Key, None]] = {}
        found: dict[Key, set[Work]] = {}
        for question in asked:
            works.setdefault(work_of(question), {})[question.key] = None
            found.setdefault(question.key, set()).add(work_of(question))
        # Where a part asks a case at several efforts, no record says for which of them it is.
        clear = {key for key, of in found.items() if len(of) == 1}
        self._others: dict[Key, tuple[Key, ...]] = {}
        for keys in works.values():
            alike = [key for key in keys if key in clear]
            self._others |= {key: tuple(other for other in alike if other != key) for key in alike}

    def of(self, key: Key) -> tuple[Key, ...]:
        """The other cases that a record of this one answers."""
        return self._others.get(key, ())

    def same_run_as(self, plans: Iterable[Planned]) -> list[str | None]:
        """For each of these cases the part of an earlier one whose run answers it, None for one that is run itself."""
        seen: dict[Key, str] = {}
        found = []
        for planned in plans:
            key = planned.question.key
            found.append(next((seen[other] for other in self.of(key) if other in seen), None))
            seen[key] = planned.question.cell.part
        return found


def standing_for(record: Record, part: str | None) -> Record:
    """The record as that of its twin in another part: all of it the same run's, when it began included."""
    measured = record.environment.get(SAME_RUN, record.part)
    environment = {name: value for name, value in record.environment.items() if name != SAME_RUN}
    return replace(record, part=part, environment=environment if measured == part else {**environment, SAME_RUN: measured})


def work_of(question: Question) -> Work:
    """What twins have in common."""
    return (question.cell.column, question.case, question.request, question.place.torch_name, question.timeout_s, question.refusal)
