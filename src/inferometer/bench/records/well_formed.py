"""Whether a record that was read holds what its fields are declared to hold: a report must not trip over the one line that does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from inferometer.bench.records.record import Record
from inferometer.errors import shown

# Of fields that may hold anything, what reports read as numbers.
_NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "energy": ("prefill_j", "decode_j", "j_per_token"),
    "utilisation": ("mbu", "mfu"),
    "serving": ("goodput", "failed", "served", "requests_s", "output_tok_s"),
}
# No figure of a record is negative, and none is further from 1 than these: no axis could show it.
_LEAST, _MOST = 1e-30, 1e30
_PLAIN: Final = (int, str, bool, float, NoneType)
_SUMMARIES: Final = ("ttft", "itl", "tpot", "e2e")


def check(record: Record) -> None:
    """Raises ValueError naming the first field that holds something else."""
    _check(record, "")
    for name, parts in _NUMBERS.items():
        for part in parts:
            _check_type((getattr(record, name) or {}).get(part), float | None, f"{name}.{part}")
    for name in _SUMMARIES:
        summary = (record.serving or {}).get(name)
        for part in ("p50", "p99"):
            if summary is not None and not (isinstance(summary, Mapping) and _is_number(summary.get(part))):
                raise ValueError(f"serving.{name} is no summary of times")
    notes = (record.serving or {}).get("notes")
    if notes is not None and not isinstance(notes, list | tuple):
        raise ValueError(f"serving.notes is {shown(notes)}, not a list")
    for name, kind in _hints(Record).items():
        if get_origin(kind) is Mapping or any(get_origin(choice) is Mapping for choice in get_args(kind)):
            _check_size(getattr(record, name), name)


def check_given(value: Mapping[str, Any]) -> None:
    """Raises ValueError naming the first plain field of a record in JSON that holds something else: arithmetic trips over it."""
    for name, kind in _hints(Record).items():
        if name in value and all(choice in _PLAIN for choice in get_args(kind) or (kind,)):
            _check_type(value[name], kind, name)
    for name in ("batch_size", "sequence_length", "decode_length", "runs"):
        count = value.get(name)
        if count is not None and count < 1:
            raise ValueError(f"{name} is {count}, and must be at least 1")


def _check_size(value: Any, path: str) -> None:
    """Raises ValueError for a number too large to be shown, however deep in a field that may hold anything."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            _check_size(each, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for each in value:
            _check_size(each, path)
    elif isinstance(value, int | float) and abs(value) > _MOST:
        raise ValueError(f"{path} is {shown(value)}")


def _check(value: Any, path: str) -> None:
    for name, kind in _hints(value.__class__).items():
        _check_type(getattr(value, name), kind, f"{path}{name}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _check_type(value: Any, kind: Any, path: str) -> None:
    if isinstance(kind, UnionType) or get_origin(kind) is Union:
        choices = get_args(kind)
        if value is None and NoneType in choices:
            return
        kinds = [choice for choice in choices if choice is not NoneType]
        if len(kinds) == 1:
            _check_type(value, kinds[0], path)
            return
        if not any(_fits(value, each) for each in kinds):
            raise ValueError(f"{path} is {shown(value)}")
    elif isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, kind):
            raise ValueError(f"{path} is {shown(value)}, not its fields")
        _check(value, f"{path}.")
    elif get_origin(kind) is Mapping:
        if not isinstance(value, Mapping):
            raise ValueError(f"{path} is {shown(value)}, not names with values")
        for name, each in value.items():
            _check_type(each, get_args(kind)[1], f"{path}.{name}")
    elif not _fits(value, kind):
        raise ValueError(f"{path} is {shown(value)}")


def _fits(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        wanted = (parts[0],) * len(value) if len(parts) == 2 and parts[1] is ... and isinstance(value, tuple) else parts
        return isinstance(value, tuple) and len(value) == len(wanted) and all(_fits(a, b) for a, b in zip(value, wanted, strict=True))
    if kind is float:
        return _is_number(value)
    if kind is int:
        return isinstance(value, int) and _is_number(value)
    return isinstance(value, kind)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and (value == 0 or _LEAST <= value <= _MOST)
