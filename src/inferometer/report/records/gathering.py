"""Records from several files, and what has to be said about them: lines that were left out, machines and sessions that are mixed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from inferometer.bench.records.record import Record
from inferometer.bench.records.record_file import REMEDY, records_in
from inferometer.errors import UserError

RECORDS: Final = "records.jsonl"
# Cases of one sitting follow each other; the longest of them is far shorter than this.
_PAUSE = timedelta(hours=1)
_VERSIONS = ("inferometer", "revision", "torch", "transformers", "cuda", "driver", "python")
_MACHINE = ("machine", "cpu", "cores", "gpu", "gpu_memory_bytes", "platform")


@dataclass(frozen=True, slots=True)
class Gathered:
    """Records in the order of their files, each once, and remarks on what was left out: sentences."""

    records: tuple[Record, ...]
    remarks: tuple[str, ...]


def gather(paths: Sequence[Path]) -> Gathered:
    """The records of all files; a folder stands for its records.jsonl. A record that is in two files counts once.

    A file is JSON lines, or the document that `bench --json` prints. Its last line may be torn by a crash: it is left out, with a remark.
    Raises UserError, naming file and line, for a file that cannot be read or holds no record, for a line that is none or is one of another
    version, and for a record whose arithmetic is off.
    """
    records: dict[str, Record] = {}
    remarks: list[str] = []
    twice = 0
    for path in paths:
        file = path / RECORDS if path.is_dir() else path
        before = sum(1 for _ in records) + twice
        for record in records_in(file, remarks):
            key = json.dumps(record.to_json(), sort_keys=True)
            twice += key in records
            records.setdefault(key, record)
        if len(records) + twice == before:
            raise UserError(f"{file} holds no record; {REMEDY}")
    if twice:
        remarks.append(f"{_count(twice, 'record')} given more than once: each counts once.")
    return Gathered(tuple(records.values()), tuple(remarks))


def mixture(records: Sequence[Record]) -> list[str]:
    """What stands beside each other in these records and yet is not alike: machines, versions, sittings. A sentence each."""
    said = []
    measured = [record for record in records if record.status != "skipped"]
    machines = _machines(measured)
    if len(machines) > 1:
        listed = "; ".join(f"{name} ({_count(count, 'case')})" for name, count in machines)
        said.append(
            f"From {len(machines)} machines: {listed}. Where their figures stand side by side, the machine is part of the difference."
        )
    versions = [f"{name} {found}" for name in _VERSIONS if (found := _versions(measured, name))]
    if versions:
        said.append(f"Measured with different versions: {'; '.join(versions)}.")
    sittings = _sittings(measured)
    if len(sittings) > 1:
        days = ", ".join(f"{start} ({_count(count, 'case')})" for start, count in sittings)
        said.append(f"Measured in {len(sittings)} sittings, from: {days}. What drifted between them is part of the difference.")
    return said


def _versions(records: Sequence[Record], name: str) -> str:
    """The versions of one thing and how many cases have each, "" where they are alike."""
    found = Counter(str(record.environment[name]) for record in records if record.environment.get(name) is not None)
    return ", ".join(f"{version} ({_count(count, 'case')})" for version, count in found.items()) if len(found) > 1 else ""


def _machines(records: Sequence[Record]) -> list[tuple[str, int]]:
    """Each machine in words, and how many cases it has. What a record does not say, it does not say otherwise."""
    found: list[tuple[dict[str, Any], int]] = []
    for record in records:
        device = record.device_name or record.device or "unknown device"
        known = {"device": device, **{name: each for name in _MACHINE if (each := record.environment.get(name)) is not None}}
        for place, (other, count) in enumerate(found):
            if all(other.get(name, value) == value for name, value in known.items()):
                found[place] = ({**other, **known}, count + 1)
                break
        else:
            found.append((known, 1))
    return [(_words(machine), count) for machine, count in found]


def _words(machine: Mapping[str, Any]) -> str:
    words: dict[str, None] = {}
    for name, value in machine.items():
        if name == "gpu_memory_bytes" and isinstance(value, int | float):
            words[f"{value / 2**30:.0f} GiB"] = None
        elif name != "machine":  # a fingerprint, which tells machines apart and says nothing
            words[f"{value} cores" if name == "cores" else str(value)] = None
    return ", ".join(words)


def _sittings(records: Sequence[Record]) -> list[tuple[str, int]]:
    """When each sitting began, and how many cases it has. The environment may name it; else a long pause ends it."""
    if all(record.environment.get("session") is not None for record in records):
        named: dict[Any, list[Record]] = {}
        for record in records:
            named.setdefault(str(record.environment["session"]), []).append(record)
        return sorted((min(_started(record)[:16] for record in each), len(each)) for each in named.values())
    times = sorted(datetime.fromisoformat(record.started_at).replace(tzinfo=None) for record in records)
    starts = [time for place, time in enumerate(times) if not place or time - times[place - 1] > _PAUSE]
    ends = [*starts[1:], None]
    return [
        (start.strftime("%Y-%m-%d %H:%M"), sum(1 for time in times if time >= start and (end is None or time < end)))
        for start, end in zip(starts, ends, strict=True)
    ]


def _started(record: Record) -> str:
    return record.started_at.replace("T", " ")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
