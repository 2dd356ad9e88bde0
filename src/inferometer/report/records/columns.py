"""Which records stand beside each other: columns (a stack and its settings) and sweeps (a workload at several batch sizes)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Record

SHORT: Final[Mapping[str, str]] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
# What a case asks is what its record repeats; the device is where it was asked.
_NAMED = {field.name for field in fields(Record)}
SETTINGS: Final = tuple(f.name for f in fields(Case) if f.name in _NAMED and f.name not in ("device", "device_name"))
# A workload is never another's because a column happens to have only one of these.
_WORKLOAD = ("model", "sequence_length", "decode_length", "forward_only", "loss")
# Of the settings that a column's name tells where they are set, and how.
_TOLD: Final[Mapping[str, str]] = {
    "quantize": "{}",
    "kv_dtype": "{} KV",
    "tensor_parallel": "TP {}",
    "admission": "{}",
    "deterministic": "deterministic",
}


def settings(record: Record) -> dict[str, Hashable]:
    """Everything that decides a case's answer but the machine, by name."""
    found: dict[str, Hashable] = {name: getattr(record, name) for name in SETTINGS}
    found["sampling"] = tuple(sorted((name, repr(value)) for name, value in record.sampling.items()))
    found["part"] = getattr(record, "part", None)
    return found


def length(record: Record) -> str:
    """The tokens of a sequence: 512+32, 1024 of a forward alone, or a context and the steps from it: 512 (32 steps)."""
    if getattr(record, "decode_only", False):
        return f"{record.sequence_length} ({record.decode_length} steps)"
    return f"{record.sequence_length}" + ("" if record.decode_length is None else f"+{record.decode_length}")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of records, in the order in which they first appear, skipped cases apart; a column's place is its colour.

    A study names its columns. Else a column is a backend with its type and whatever else of its settings is unusual.
    """

    names: tuple[str, ...]
    _machines: bool

    @classmethod
    def of(cls, records: Iterable[Record], *, by_machine: bool = True) -> Columns:
        """The columns of all these; with records of several devices, each device has its own, unless told otherwise."""
        kept = list(records)
        machines = by_machine and len({record.device_name for record in kept}) > 1
        # Those that have something to show come first.
        kept.sort(key=lambda record: record.status == "skipped")
        return cls(tuple(dict.fromkeys(_name(record, machines) for record in kept)), machines)

    def name(self, record: Record) -> str:
        """What a record's column is called."""
        return _name(record, self._machines)

    def colour(self, record: Record) -> int:
        """The place of a record's column."""
        return self.names.index(self.name(record))


def _name(record: Record, machines: bool) -> str:
    named = getattr(record, "column", None)
    if named is None:
        words = [record.backend, SHORT.get(record.dtype, record.dtype)]
        for setting, said in _TOLD.items():
            value = getattr(record, setting)
            if value not in (None, False, "auto", 1 if setting == "tensor_parallel" else None):
                words.append(said.format(value))
        named = " ".join(words)
    return f"{named}, {record.device or record.device_name or 'unknown device'}" if machines else str(named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One workload: its name, and the records of each column by ascending batch size."""

    name: str
    columns: Mapping[str, tuple[Record, ...]]

    @property
    def records(self) -> tuple[Record, ...]:
        """All of them, column by column."""
        return tuple(record for each in self.columns.values() for record in each)

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes that any column tried, ascending."""
        return tuple(sorted({record.batch_size for record in self.records}))


def sweeps(records: Sequence[Record], columns: Columns) -> tuple[Sweep, ...]:
    """The workloads of records. Of a case that was measured again, the latest counts."""
    apart = _apart(records, columns)
    found: dict[tuple[Hashable, ...], dict[str, dict[int, Record]]] = {}
    for record in sorted(records, key=lambda r: r.started_at):
        asked = settings(record)
        workload = found.setdefault(tuple(asked[name] for name in apart), {})
        workload.setdefault(columns.name(record), {})[record.batch_size] = record
    made = []
    for cases in found.values():
        of = {name: tuple(cases[name][size] for size in sorted(cases[name])) for name in columns.names if name in cases}
        made.append(Sweep(name=workload_name(next(iter(of.values()))[0], apart), columns=of))
    order = {id(record): place for place, record in enumerate(records)}
    return tuple(sorted(made, key=lambda sweep: min(order[id(record)] for record in sweep.records)))


def repeated(records: Sequence[Record], columns: Columns) -> int:
    """How many records are of a case that a later record answers again."""
    return len(records) - len({(columns.name(record), tuple(settings(record).items())) for record in records})


def workload_name(record: Record, apart: Sequence[str]) -> str:
    """Model and lengths, and what else tells this workload from others: the settings `apart`."""
    if record.forward_only:
        words = [record.model, f"forward of {record.sequence_length} tokens" + (" with loss" if record.loss else "")]
    elif getattr(record, "decode_only", False):
        words = [record.model, f"{record.decode_length} steps from a context of {record.sequence_length} tokens"]
    else:
        words = [record.model, f"{record.sequence_length} prompt + {record.decode_length} new tokens"]
    asked = settings(record)
    for name in apart:
        if name not in _WORKLOAD and name not in ("sampling", "decode_only") and asked[name] is not None:
            words.append(f"{name.replace('_', ' ')} {asked[name]}")
    return ", ".join(words)


def effort(records: Sequence[Record]) -> str:
    """How these records were measured, where all of them were alike: runs, warm-ups, weights, sampling, the check before; of a server how
    many requests there were of each load."""
    words = []
    runs, warmups = ({getattr(record, name) for record in records} for name in ("runs", "warmups"))
    asked = {record.requests for record in records if record.requests is not None}
    if asked:
        words.append(_counted(asked.pop(), "request") + " a load" if len(asked) == 1 else f"{min(asked)} to {max(asked)} requests a load")
    elif len(runs) == 1:
        words.append(_counted(runs.pop(), "run") + (f" after {_counted(warmups.pop(), 'warm-up')}" if len(warmups) == 1 else ""))
    weights = {record.weights for record in records}
    if weights == {"dummy"}:
        words.append("dummy weights")
    if any(record.decode_length is not None for record in records):
        sampled = {name for record in records for name, value in record.sampling.items() if value not in (None, False)}
        words.append(f"sampling with {', '.join(sorted(sampled)).replace('_', ' ')}" if sampled else "greedy")
    ok = [record for record in records if record.status == "ok"]
    checked = sum(record.checked is not None and record.checked.passed for record in ok)
    if checked:
        words.append("checked before they were timed" if checked == len(ok) else f"{checked} of {len(ok)} checked before they were timed")
    return "; ".join(words)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _apart(records: Sequence[Record], columns: Columns) -> tuple[str, ...]:
    """The settings that tell workloads apart: what a workload is, and what else differs within a column. A column has one of the rest."""
    values: dict[tuple[str, str], set[Any]] = {}
    for record in records:
        for name, value in settings(record).items():
            values.setdefault((columns.name(record), name), set()).add(value)
    differing = {name for (_, name), found in values.items() if len(found) > 1}
    if all(record.num_groups is None or record.batch_size == record.num_groups * (record.group_size or 0) for record in records):
        differing.discard("num_groups")  # which the batch size says already
    return (*_WORKLOAD, *sorted(differing - {*_WORKLOAD, "batch_size"}))
