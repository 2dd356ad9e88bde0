"""Looks for the largest batch that each column of a part's rows takes, beyond the batch sizes that the study asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from inferometer.bench.plan.edge import LARGEST, next_batch
from inferometer.bench.plan.forecast import forecast
from inferometer.bench.plan.plan import Planned
from inferometer.bench.plan.question import question
from inferometer.bench.records.record import Record

_VARIES: Final = ("batch_size", "case_id")


class EdgeSearch:
    """The search of one column with everything but the batch fixed. Its cases are of the part "PART edge", run once."""

    def __init__(self, planned: Planned) -> None:
        self._planned = planned
        self._fits: dict[int, bool] = {}
        self._failed = False

    @property
    def base(self) -> Planned:
        """A case of the search that the study asks for."""
        return self._planned

    def observe(self, record: Record) -> None:
        """Learns from a record, if it is of this search."""
        cell, asked = self._planned.question.cell, self._planned.question.case.asked
        if record.part not in (cell.part, edge_part(cell.part)) or record.column != cell.column:
            return
        if any(getattr(record, name) != value for name, value in asked.items() if name not in _VARIES):
            return
        if record.status in ("ok", "oom"):
            self._fits[record.batch_size] = record.status == "ok"
        else:
            self._failed = True

    def next(self) -> Planned | None:
        """The case to try next; None once the edge is known, or where a case of the search ended in another way."""
        if self._failed or not self._fits:
            return None
        size = next_batch(self._fits, self._planned.forecast.largest_batch)
        if size is None:
            return None
        cell = self._planned.question.cell
        changed = {"batch_size": size}
        asked = question(
            replace(
                cell,
                part=edge_part(cell.part),
                row=size,
                point={**cell.point, **changed},
                settings={**cell.settings, **changed, "runs": 1, "warmups": 0, "energy": False},
            ),
            self._planned.question.place,
        )
        return Planned(asked, forecast(asked))

    @property
    def result(self) -> str:
        """What is known, in words."""
        over = min((size for size, fits in self._fits.items() if not fits), default=None)
        under = max((size for size, fits in self._fits.items() if fits and (over is None or size < over)), default=None)
        fits = None if under is None else f"a batch of {under} fits"
        if self._failed:
            known = ", ".join(each for each in (fits, over and f"one of {over} does not fit") if each)
            return "the edge is not known: a case ended neither ok nor oom" + (f"; {known}" if known else "")
        if fits is None:
            return "no batch fits" if over is not None else "the edge is not known: nothing was tried"
        if over is None:
            return fits + (", the largest that is tried" if under == LARGEST else "")
        return f"{fits}, one of {over} does not"


def edge_part(part: str) -> str:
    """The part that records of the search are of."""
    return f"{part} edge"


def edge_searches(plans: Sequence[Planned], records: Iterable[Record]) -> list[EdgeSearch]:
    """A search for each column and row but for the batch size, where that is an axis, with what `records` already say."""
    found: dict[tuple[object, ...], EdgeSearch] = {}
    for planned in plans:
        cell = planned.question.cell
        if planned.question.refusal is None and "batch_size" in cell.point:
            rest = tuple((name, value) for name, value in cell.point.items() if name != "batch_size")
            found.setdefault((cell.part, cell.column, rest), EdgeSearch(planned))
    for record in records:
        for search in found.values():
            search.observe(record)
    return list(found.values())
