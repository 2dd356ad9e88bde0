"""The records of one part of a study, found by their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from inferometer.bench.records.record import Record
from inferometer.bench.study.layout import TOTAL_LENGTH, Where
from inferometer.bench.study.study import Cell, Study
from inferometer.report.records.origin import Origin


def setting(record: Record, name: str) -> Any:
    """What a record says of a setting of its case, sampling included; None where it is unset. total_length: prompt and new tokens."""
    if name == TOTAL_LENGTH:
        return record.sequence_length + (record.decode_length or 0)
    return record.sampling[name] if name in record.sampling else getattr(record, name, None)


def matches(of: Callable[[str], Any], where: Where) -> bool:
    """Whether each named setting has one of its values; `of` gives a setting's value."""
    return all(of(name) in allowed for name, allowed in where.items())


@dataclass(frozen=True, slots=True)
class PartRecords:
    """The records of a part, one a case and column, in the order of the study; `left_out` are the cases that it excludes.

    order: the values of each setting in the study's order.
    """

    records: tuple[Record, ...]
    left_out: tuple[Cell, ...] = ()
    order: Mapping[str, tuple[Any, ...]] | None = None

    @classmethod
    def of(cls, study: Study, part: str, records: Iterable[Record]) -> PartRecords:
        """Those of the part among a study's records. Of several records of one case the last is kept: a later run of it."""
        last = {(record.column, record.case_id): record for record in records if record.part == part}
        cells = [cell for cell in study.cells() if cell.part == part]
        order: dict[str, dict[Any, None]] = {}
        for cell in cells:
            for name, value in {**cell.settings, "column": cell.column}.items():
                order.setdefault(name, {})[value] = None
        kept = {name: tuple(values) for name, values in order.items()}
        return cls(tuple(last.values()), tuple(cell for cell in cells if cell.excluded is not None), kept)

    def where(self, where: Where) -> PartRecords:
        """Only those with these settings."""
        return PartRecords(
            tuple(record for record in self.records if matches(partial(setting, record), where)),
            tuple(cell for cell in self.left_out if matches({**cell.settings, "column": cell.column}.get, where)),
            self.order,
        )

    def bounded(self, record: Record) -> Record | None:
        """A record that has the bound of this one's work: itself, or another of the same work on the same machine.

        The least time that a device needs does not depend on the order in which groups go through it, nor on the stack.
        """
        if record.bound is not None:
            return record
        formats = ("device", "dtype", "quantize", "kv_dtype")
        alike = (other for other in self.records if other.bound is not None and workload(other, formats) == workload(record, formats))
        return next((other for other in alike if Origin.of(other).apart(Origin.of(record)) is None), None)

    def values(self, names: Sequence[str]) -> tuple[tuple[Any, ...], ...]:
        """The distinct values that the records have in these settings together: numbers by size, others as the study orders them."""
        found = dict.fromkeys(tuple(setting(record, name) for name in names) for record in self.records)
        places = [self._places(name, [values[index] for values in found]) for index, name in enumerate(names)]
        return tuple(sorted(found, key=lambda values: [places[index][value] for index, value in enumerate(values)]))

    def _places(self, name: str, values: Sequence[Any]) -> dict[Any, int]:
        known = (self.order or {}).get(name, ())
        others = list(dict.fromkeys(value for value in values if value not in known))
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in [*known, *others]):
            return {value: place for place, value in enumerate(sorted({*known, *others}))}
        return {value: place for place, value in enumerate([*known, *others])}


def workload(record: Record, more: Sequence[str] = ()) -> tuple[Any, ...]:
    """What is to be computed in a case, whoever computes it, and settings that are to be told apart as well."""
    names = ("model", "tensor_parallel", "batch_size", "sequence_length", "decode_length", "group_size", "num_groups")
    return tuple(setting(record, name) for name in (*names, "forward_only", "loss", "decode_only", *more))
