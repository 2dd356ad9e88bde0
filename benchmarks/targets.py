"""The table that RESULTS.md begins with: what the product is held to, what was measured, and beside it the prediction and the limit.

The targets stand in targets.toml; every figure comes from a record. A target whose record is not there is a row that says so.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inferometer.bench.records.journal import read_records
from inferometer.bench.study.folder import RECORDS

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One row.

    records: the file, by its stem, or the study; where: the fields of the record that is meant. figure: its field that is held against
    at_least or at_most, each a number or the name of a field. over: fields of the record of the same file by whose figure it is divided;
    under: that is divided by it. shown, bound, predicted: fields of the record that stand beside it, in `unit`. note: what binds where it
    is missed, and what was tried. awaited: there is no such record yet; without it, one that is not there is an error.
    """

    part: str
    work: str
    records: str
    where: Fields
    figure: str
    at_least: float | str | None = None
    at_most: float | str | None = None
    over: Fields | None = None
    under: Fields | None = None
    shown: str | None = None
    unit: str = ""
    bound: str | None = None
    predicted: str | None = None
    note: str | None = None
    awaited: bool = False

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"{self.work}: one of at_least and at_most")
        if self.over is not None and self.under is not None:
            raise ValueError(f"{self.work}: over or under")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A target beside its record; measured is None where there is none, or where it failed."""

    target: Target
    record: Fields | None
    measured: float | None
    limit: float | None

    @property
    def held(self) -> bool | None:
        """None where it is not measured."""
        if self.measured is None or self.limit is None:
            return None
        return self.measured >= self.limit if self.target.at_most is None else self.measured <= self.limit


def read_targets(file: Path) -> list[Target]:
    """Raises TypeError or ValueError where an entry is not a target."""
    return [Target(**entry) for entry in tomllib.loads(file.read_text())["target"]]


def outcomes(targets: list[Target], folders: list[Path]) -> list[Outcome]:
    """Each beside the record that it names; where several match, the last.

    Raises ValueError where no file is called so, where no record of the file has a field that the target names, and where none is the one
    that it means and it is not awaited: a slip is no gap.
    """
    files = {file.stem: _records(file) for folder in folders for file in sorted(folder.glob("*.jsonl"))}
    files |= {file.parent.name: _measured(file) for folder in folders for file in sorted(folder.glob(f"*/{RECORDS}"))}
    for target in targets:
        if target.records not in files and not target.awaited:
            near = difflib.get_close_matches(target.records, files, n=1)
            meant = f"; is it {near[0]}?" if near else "; add them, or say that they are awaited"
            raise ValueError(f"{target.work}: there are no records {target.records}{meant}")
        if not target.awaited:
            _check_fields(target, files[target.records])
    return [_outcome(target, files.get(target.records, [])) for target in targets]


def _check_fields(target: Target, records: list[Fields]) -> None:
    fields = {name for record in records for name in record}
    limit = target.at_most if target.at_least is None else target.at_least
    named = [*target.where, *(target.over or ()), *(target.under or ()), target.figure, *([limit] if isinstance(limit, str) else ())]
    for name in (*named, target.shown, target.bound):  # older records have no prediction
        if name is not None and name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            raise ValueError(f"{target.work}: no record of {target.records} has a field {name}{f'; is it {near[0]}?' if near else ''}")


def page(found: list[Outcome]) -> str:
    """A table a part, and below it what the notes say of rows that are missed."""
    parts = ["## Targets", _count(found)]
    for name in dict.fromkeys(outcome.target.part for outcome in found):
        rows = [outcome for outcome in found if outcome.target.part == name]
        parts += [f"### {name}", _table([_row(outcome) for outcome in rows])]
        missed = [outcome.target for outcome in rows if outcome.target.note and outcome.held is not True]
        notes = dict.fromkeys(target.note for target in missed)
        if notes:
            lines = (f"- {'; '.join(target.work for target in missed if target.note == note)}: **{note}**" for note in notes)
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _records(file: Path) -> list[Fields]:
    records = [_flat(json.loads(line)) for line in file.read_text().splitlines()]
    return [{"device_name": records[0].get("device_name"), **record} for record in records]


def _measured(file: Path) -> list[Fields]:
    """Of a study: its records are stored compactly."""
    return [_flat(asdict(record)) for record in read_records(file)]


def _flat(record: Fields, before: str = "") -> dict[str, Any]:
    """Fields of inner objects under their path, with dots."""
    fields: dict[str, Any] = {}
    for name, value in record.items():
        fields |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return fields


def _find(records: list[Fields], where: Fields) -> Fields | None:
    fitting = [record for record in records if all(record.get(name) == value for name, value in where.items())]
    return fitting[-1] if fitting else None


def _outcome(target: Target, records: list[Fields]) -> Outcome:
    limit = target.at_most if target.at_least is None else target.at_least
    record = _find(records, target.where)
    if record is None:
        if not target.awaited:
            raise ValueError(f"{target.work}: no record of {target.records} is {dict(target.where)}; a slip, or is it awaited?")
        return Outcome(target, None, None, None if isinstance(limit, str) else limit)
    measured = record.get(target.figure)
    reference = target.over or target.under
    if reference is not None:
        other = _find(records, {**target.where, **reference})
        value = None if other is None else other.get(target.figure)
        measured = None if measured is None or not value else measured / value if target.under is None else value / measured
    return Outcome(target, record, measured, record.get(limit) if isinstance(limit, str) else limit)


def _row(outcome: Outcome) -> list[str]:
    target, record = outcome.target, outcome.record or {}
    sign = "<=" if target.at_least is None else ">="
    held = {True: "yes", False: "**no**", None: "not measured"}[outcome.held]
    beside = [_figure(None if name is None else record.get(name)) for name in (target.shown, target.predicted, target.bound)]
    device = str(record.get("device_name") or "-")
    return [target.work, f"{sign} {_figure(outcome.limit)}", _figure(outcome.measured), held, *beside, target.unit, device]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"


def _count(found: list[Outcome]) -> str:
    measured = [outcome for outcome in found if outcome.held is not None]
    return (
        f"{sum(1 for outcome in measured if outcome.held)} of {len(measured)} measured targets are held; {len(found) - len(measured)} are "
        "not measured. A target is a ratio to what was measured in the same run on the same card, unless it has a unit of its own. "
        "Beside it stand what was measured, what the estimator expects and the least that the hardware leaves, in the unit named."
    )


def _table(rows: list[list[str]]) -> str:
    heads = ["Work", "Target", "Found", "Held", "Measured", "Predicted", "Least", "Unit", "Device"]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in [heads, *rows]]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
