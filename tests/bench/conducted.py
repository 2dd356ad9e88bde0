"""Plans that a conductor runs on processes that never were."""

from __future__ import annotations

from typing import Any

from fake_worker import Workshop

from inferometer.bench.conduct.conductor import Conduct, Conductor
from inferometer.bench.plan.plan import Planned
from inferometer.bench.records.record import Record
from inferometer.bench.records.session import Session

SESSION = Session(session="s", machine="m", revision="r")


def conduct(
    plans: list[Planned], shop: Workshop | None = None, *, later: list[Planned] | None = None, oomed: Any = (), **how: Any
) -> tuple[list[Record], Workshop]:
    """The records, and the workshop that the processes came from. oomed: columns that a former session saw out of memory."""
    shop = shop or Workshop()
    records: list[Record] = []

    def out_of_memory() -> set[Any]:
        return {*oomed, *((record.part, record.column) for record in records if record.status == "oom")}

    conductor = Conductor(SESSION, Conduct(**how), records.append, study="mine", oomed=out_of_memory, start=shop, clock=shop.clock)  # type: ignore[arg-type]
    with conductor:
        try:
            conductor.run(plans, later=later or [])
        finally:
            shop.log.append(("done",))
    return records, shop


def ends(records: list[Record]) -> list[tuple[Any, ...]]:
    """Each case and how it ended."""
    return [(record.column, record.batch_size, record.status) for record in records]
