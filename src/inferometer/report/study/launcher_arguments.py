"""What the cases of a part were run with, as the field lists a launcher's arguments: what is constant, then what varies."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from inferometer.bench.records.case import Case
from inferometer.report.markup.parts import Bullets, Code, Heading, Part
from inferometer.report.study.part_records import PartRecords, setting
from inferometer.report.tables.words import shown

# They follow from the others, or name the machine.
_NO_ARGUMENTS = {"device_name", "memory_limit"}


def launcher_arguments(study: str, records: PartRecords, level: int) -> tuple[Part, ...]:
    """The command that runs the study, and every setting of its cases: one value under Constant, several under Variables."""
    names = [field.name for field in fields(Case) if field.name not in _NO_ARGUMENTS]
    values = {name: list(dict.fromkeys(setting(record, name) for record in records.records)) for name in names}
    parts: list[Part] = [Code(f"inferometer study run {study}"), Heading(level, "Constant")]
    parts.append(Bullets(tuple(f"{name}: {_quoted(found[0])}" for name, found in values.items() if len(found) == 1)))
    varied = [f"{name}: Some({','.join(shown(value) for value in found)})" for name, found in values.items() if len(found) > 1]
    if varied:
        parts += [Heading(level, "Variables"), Bullets(tuple(varied))]
    return tuple(parts)


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else shown(value)
