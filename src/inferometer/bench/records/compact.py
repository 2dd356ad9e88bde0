"""Records in few bytes: what many have in common is said once, and what follows from the rest is not said.

A line `{"shared": {...}}` holds values. A later line with `"shared": N` is a record that has those of the N-th such line, counted from 0,
beside its own; objects within are merged. Of a time only its samples are kept, and neither defaults nor rates that follow from times.
Any other line is a record as `Record.to_json` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import reduce
from typing import Any, Final

from inferometer.bench.records.record import TIMES, Record
from inferometer.errors import shown

_SHARED: Final = "shared"
_DEFAULTS: Final[Mapping[str, Any]] = {field.name: field.default for field in fields(Record) if field.default is not MISSING}
_SENSORS: Final = "sensors"
# Of what sensors said when a case had run: whether clocks were held down and others were at work. The rest no table or figure shows.
_TOLD: Final = ("gpu_sm_clock_mhz", "gpu_memory_clock_mhz", "gpu_temperature_c", "gpu_throttle_reasons", "gpu_processes", "host_load")


def compacted(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """The lines that say these records, in their order. Nothing is lost but most of the environment's readings of sensors."""
    kinds = [(record.status, *sorted(record.environment)) for record in records]
    values = [_reduced(record) for record in records]
    common: dict[tuple[str, ...], dict[str, Any]] = {}
    for kind in dict.fromkeys(kinds):
        common[kind] = reduce(_common, (value for other, value in zip(kinds, values, strict=True) if other == kind))
    places = {kind: place for place, kind in enumerate(common)}
    yield from ({_SHARED: shared} for shared in common.values())
    for kind, value in zip(kinds, values, strict=True):
        yield {_SHARED: places[kind], **_without(value, common[kind])}


class Expander:
    """Reads lines one after another and gives the records as plain values, as `Record.from_json` takes them."""

    def __init__(self) -> None:
        self._shared: list[dict[str, Any]] = []

    def take(self, value: Any) -> Any:
        """The record of a line, None for a line that only holds what others share; what is neither comes back as it is.

        Raises ValueError for a record that shares what was not said.
        """
        if not isinstance(value, dict) or _SHARED not in value:
            return value
        own = dict(value)
        shared = own.pop(_SHARED)
        if isinstance(shared, dict):
            self._shared.append(shared)
            return None
        if type(shared) is not int or not 0 <= shared < len(self._shared):
            raise ValueError(f"it shares the values of line {shown(shared)}, of {len(self._shared)} such lines before it")
        return _merged(self._shared[shared], own)


def _reduced(record: Record) -> dict[str, Any]:
    value = record.to_json()
    sensors = value["environment"].pop(_SENSORS, None) or {}
    told = {name: {"value": each} for name in _TOLD if (each := sensors.get(name, {}).get("value")) is not None}
    value["environment"] |= {_SENSORS: told} if told else {}
    value |= {name: value[name]["samples"] for name in TIMES if value[name] is not None}
    if record.throughput == record.worked_out_throughput:
        del value["throughput"]
    return {name: each for name, each in value.items() if name not in _DEFAULTS or each != _DEFAULTS[name]}


def _common(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What both say alike, within objects too."""
    found = {}
    for name, each in one.items():
        if isinstance(each, dict) and isinstance(other.get(name), dict):
            found[name] = _common(each, other[name])
        elif name in other and other[name] == each and type(other[name]) is type(each):
            found[name] = each
    return found


def _without(value: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """What is not shared; of an object that is shared in part, the rest."""
    found = {}
    for name, each in value.items():
        rest = _without(each, shared[name]) if isinstance(each, dict) and name in shared else each
        if name not in shared or (isinstance(each, dict) and rest):
            found[name] = rest
    return found


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(shared)
    for name, each in own.items():
        known = found.get(name)
        found[name] = _merged(known, each) if isinstance(known, dict) and isinstance(each, dict) else each
    return found
