"""Reads the measured rows, the regimes and the splits that stand beside this file, and checks them against each other."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, TypeVar

from inferometer.errors import UserError
from inferometer.estimate.measured.regime import KEYS, Regime, Split
from inferometer.estimate.measured.row import ADMISSIONS, MODES, PARALLELS, QUANTITIES, MeasuredRow
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.table import Table

REGIMES, SPLITS = "regimes.toml", "splits.toml"
_Word = TypeVar("_Word", bound=str)


@cache
def load_regimes() -> Mapping[str, Regime]:
    """Every regime by name, in the order of the file."""
    return read_regimes(_toml(REGIMES), _toml(SPLITS))


def load_rows(regime: str | None = None) -> tuple[MeasuredRow, ...]:
    """All measured rows, or one regime's. Raises UserError, naming the regimes, for an unknown one."""
    rows = _rows()
    if regime is None:
        return tuple(row for group in rows.values() for row in group)
    if regime not in rows:
        raise UserError(f"regime {regime} is unknown; the regimes are {', '.join(rows)}")
    return rows[regime]


def load_calibration(name: str) -> Calibration:
    """What was measured on the card of a row. Raises UserError where there is no such file, or a damaged one."""
    try:
        return Calibration.from_json(json.loads(_folder().joinpath("calibrations", f"{name}.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"calibration {name} of the measured rows cannot be read: {' '.join(str(error).split())}") from error


@cache
def _rows() -> Mapping[str, tuple[MeasuredRow, ...]]:
    found: dict[str, list[MeasuredRow]] = {name: [] for name in load_regimes()}
    for name in _files():
        for row in read_rows(_toml(f"rows/{name}"), name):
            if row.regime not in found:
                raise UserError(f"{name}: {row.id}: regime {row.regime!r} is not in {REGIMES}")
            found[row.regime].append(row)
    for name, rows in found.items():
        check(load_regimes()[name], rows)
    return MappingProxyType({name: tuple(rows) for name, rows in found.items()})


def check(regime: Regime, rows: Sequence[MeasuredRow]) -> None:
    """Raises UserError unless the regime has rows, all of its quantity and with ids of their own, among them those that are fitted."""
    ids = [row.id for row in rows]
    twice = next((name for name in ids if ids.count(name) > 1), None)
    if not rows:
        raise UserError(f"regime {regime.name} has no rows")
    if twice is not None:
        raise UserError(f"regime {regime.name}: {twice} is there twice")
    wrong = next((row for row in rows if row.quantity != regime.quantity), None)
    if wrong is not None:
        raise UserError(f"regime {regime.name}: {wrong.id} is {wrong.quantity}, not {regime.quantity}")
    stray = sorted(regime.split.fitted - {row.id for row in rows if row.counted})
    if stray:
        raise UserError(f"{SPLITS}: {regime.name}: {stray[0]} is no counted row")
    if regime.split.fitted and all(row.id in regime.split.fitted for row in rows if row.counted):
        raise UserError(f"{SPLITS}: {regime.name}: no row is held out")
    unknown = sorted({*regime.split.alike, *regime.split.alike.values()} - {row.model for row in rows})
    if unknown:
        raise UserError(f"{SPLITS}: {regime.name}: alike names {unknown[0]}, which no row has")


def read_rows(document: Mapping[str, Any], where: str) -> Iterator[MeasuredRow]:
    """The rows of one file. A row has the file's values, its table's and its own, the last one counting.

    Raises UserError that names the file, the table and the key that is wrong.
    """
    shared = {key: value for key, value in document.items() if key != "table"}
    for index, table in enumerate(Table(document, where).tables("table")):
        values = document["table"][index]
        columns, rows = table.texts("columns"), values.get("rows")
        notes = values.get("notes", {})
        if not columns or not isinstance(rows, list) or not isinstance(notes, dict):
            raise table.error("columns must be a list of names, rows a list of rows, notes a table")
        plain = {key: value for key, value in values.items() if key not in ("columns", "rows", "notes")}
        seen = set()
        for number, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != len(columns):
                raise table.error(f"rows[{number}] must be a list of {len(columns)} values")
            fields = shared | plain | dict(zip(columns, row, strict=True))
            made = _row(fields, notes, f"{where}: table[{index}]: rows[{number}]")
            seen.add(made.id)
            yield made
        stray = sorted(set(notes) - seen)
        if stray:
            raise table.error(f"a note is of {stray[0]}, which is no row")


def _row(fields: Mapping[str, Any], notes: Mapping[str, Any], where: str) -> MeasuredRow:
    table = Table(fields, where)
    try:
        name = table.text("id").format_map(fields)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise table.error(f"id: {' '.join(str(error).split())} is no column") from None
    note = notes.get(name)
    if note is not None and not isinstance(note, str):
        raise table.error(f"the note of {name} must be a string")
    gpus = _count(table, "gpus", 1)
    group_size, groups = _optional_count(table, "group_size"), _optional_count(table, "groups")
    source = f"{table.text('source')}, {table.text('place')}, {table.text('date')}"
    values: dict[str, Any] = {
        "regime": table.text("regime"),
        "stack": table.text("stack"),
        "device": table.text("device"),
        "link": _optional_text(table, "link"),
        "parallel": _one_of(table, "parallel", PARALLELS) if table.has("parallel") else "none",
        "model": table.text("model"),
        "dtype": table.text("dtype"),
        "quantize": _optional_text(table, "quantize"),
        "mode": _one_of(table, "mode", MODES),
        "admission": _one_of(table, "admission", ADMISSIONS) if table.has("admission") else None,
        "batch": group_size * groups if group_size and groups and not table.has("batch") else table.count("batch"),
        "prompt_tokens": table.count("prompt_tokens"),
        "new_tokens": _new_tokens(table, fields),
        "loss": _flag(table, "loss", default=False),
        "quantity": _one_of(table, "quantity", QUANTITIES),
        "value": float(table.number("value")),
        "tok_s": _optional_number(table, "tok_s"),
        "session": _optional_text(table, "session"),
        "published_estimate": _optional_number(table, "published_estimate"),
        "revision": _optional_text(table, "revision"),
        "calibration": _optional_text(table, "calibration"),
        "counted": _flag(table, "counted", default=True),
    }
    table.finish()
    try:
        return MeasuredRow(id=name, gpus=gpus, group_size=group_size, groups=groups, source=source, note=note, **values)
    except ValueError as error:
        raise table.error(str(error)) from None


def read_regimes(regimes: Mapping[str, Any], splits: Mapping[str, Any]) -> Mapping[str, Regime]:
    """The regimes of the two files. Raises UserError that names the file and the key that is wrong."""
    stray = sorted(set(splits) - set(regimes))
    if stray:
        raise UserError(f"{SPLITS}: {stray[0]} is not in {REGIMES}")
    found = {name: _regime(name, values, splits) for name, values in regimes.items()}
    for name, regime in found.items():
        if regime.constants is not None and (regime.constants not in found or found[regime.constants].constants is not None):
            raise UserError(f"{REGIMES}: {name}: constants names {regime.constants!r}, which is no regime with constants of its own")
    return MappingProxyType(found)


def _regime(name: str, values: Any, splits: Mapping[str, Any]) -> Regime:
    if not isinstance(values, dict):
        raise UserError(f"{REGIMES}: {name} must be a table")
    if name not in splits:
        raise UserError(f"{SPLITS}: {name} is missing; say that nothing is fitted by an empty table")
    table = Table(values, f"{REGIMES}: {name}")
    made = Regime(
        name=name,
        title=table.text("title"),
        quantity=_one_of(table, "quantity", QUANTITIES),
        published=_optional_text(table, "published"),
        gate=_optional_number(table, "gate"),
        worst_gate=_optional_number(table, "worst_gate"),
        stretch=_optional_number(table, "stretch"),
        gates=_flag(table, "gates", default=True),
        read_off=_flag(table, "read_off", default=False),
        constants=_optional_text(table, "constants"),
        split=_split(splits[name], f"{SPLITS}: {name}"),
    )
    table.finish()
    return made


def _split(values: Any, where: str) -> Split:
    if not isinstance(values, dict):
        raise UserError(f"{where} must be a table")
    table = Table(values, where)
    alike = table.table("alike")
    keys = tuple(key for key in KEYS if key in table.texts("leave_out"))
    if len(keys) != len(table.texts("leave_out")):
        raise table.error(f"leave_out holds each of {', '.join(KEYS)} at most once, not {list(table.texts('leave_out'))}")
    try:
        made = Split(
            fitted=frozenset(table.texts("fitted")),
            leave_out=keys,
            alike=MappingProxyType({model: alike.text(model) for model in alike.names()}),
        )
    except ValueError as error:
        raise table.error(str(error)) from None
    table.finish()
    return made


def _one_of(table: Table, key: str, words: tuple[_Word, ...]) -> _Word:
    value = table.text(key)
    for word in words:
        if word == value:
            return word
    raise table.error(f"{key} must be one of {', '.join(words)}, not {value!r}")


def _optional_text(table: Table, key: str) -> str | None:
    return table.text(key) if table.has(key) else None


def _optional_number(table: Table, key: str) -> float | None:
    return float(table.number(key)) if table.has(key) else None


def _optional_count(table: Table, key: str) -> int | None:
    return table.count(key) if table.has(key) else None


def _count(table: Table, key: str, default: int) -> int:
    return table.count(key) if table.has(key) else default


def _new_tokens(table: Table, fields: Mapping[str, Any]) -> int:
    """0 where the key is absent or 0: a pass that generates nothing."""
    return table.count("new_tokens") if table.has("new_tokens") and fields["new_tokens"] != 0 else 0


def _flag(table: Table, key: str, *, default: bool) -> bool:
    return table.flag(key) if table.has(key) else default


@cache
def _files() -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in _folder().joinpath("rows").iterdir() if entry.name.endswith(".toml")))


def _toml(name: str) -> Mapping[str, Any]:
    return tomllib.loads(_folder().joinpath(name).read_text("utf-8"))


def _folder() -> Traversable:
    return files("inferometer.estimate.measured")
