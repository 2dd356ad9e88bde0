"""The records in a file, and what of it is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from inferometer.bench.records.compact import Expander
from inferometer.bench.records.record import SCHEMA_VERSION, Record
from inferometer.bench.records.well_formed import check, check_given
from inferometer.errors import UserError, shown

REMEDY: Final = "name a file of records that `bench --output` or `study run` wrote"


def records_in(file: Path, remarks: list[str]) -> Iterator[Record]:
    """The records of JSON lines, or of the document that `bench --json` prints, in their order; none of an empty file.

    A mark of byte order in front, as some editors put it there, is no part of the first line. A line that is no JSON, as the last may be
    that a crash tore, is left out: `remarks` gets a sentence that says so.
    Raises UserError, naming file and line, for a file that cannot be read, for a line that is no record or one of another version, and
    for a record whose fields or arithmetic are off.
    """
    try:
        text = file.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; {REMEDY}") from error
    except ValueError as error:  # a name with a NUL
        raise UserError(f"{file!s}: {error}; {REMEDY}") from error
    document = _document(text)
    if document is not None:
        for number, value in enumerate(document, start=1):
            yield _record(value, f"{file}, record {number}")
        return
    expander = Expander()
    lines = text.split("\n")
    last = max((number for number, line in enumerate(lines, start=1) if line.strip()), default=0)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            what = "the last line is torn, as by a crash while it was written" if number == last else f"line {number} is torn"
            remarks.append(f"{file}: {what}; it is left out.")
            continue
        try:
            whole = expander.take(value) if isinstance(value, dict) else value
        except ValueError as error:
            raise UserError(f"{file}, line {number}: {error}; name the whole file") from error
        if whole is not None or value is None:
            yield _record(whole, f"{file}, line {number}")


def _document(text: str) -> list[Any] | None:
    """The records of `{"records": [...]}`, None for anything else."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = value.get("records") if isinstance(value, dict) else None
    return found if isinstance(found, list) else None


def _record(value: Any, where: str) -> Record:
    version = value.get("schema_version", SCHEMA_VERSION) if isinstance(value, dict) else None
    if version is None:
        raise UserError(f"{where}: not a record; {REMEDY}")
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        remedy = "use the newer inferometer that wrote it" if newer else "measure it again"
        raise UserError(f"{where}: schema_version {shown(version)}, and this inferometer reads {SCHEMA_VERSION}; {remedy}")
    try:
        check_given(value)
        record = Record.from_json(value)
        check(record)
        record.to_json()  # of which not-a-number is no part
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UserError(f"{where}: {error}; leave the line out or measure the case again") from error
    return record
