"""Records as comma-separated values: a line a record, every field of it that is one value."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferometer.bench.records.record import Record
from inferometer.report.records.beyond_bound import beyond_bound, is_beyond
from inferometer.report.records.columns import Columns

# Lists of single runs, and what sensors said at one moment, are for the records themselves.
_LEFT_OUT = ("samples", "sensors")


def records_csv(records: Sequence[Record]) -> str:
    """A header and a line a record; nested fields by their path (`prefill_ms.p50`), what is unknown empty. `label` names its column;
    `remark`, the last, says of a record that was faster than its bound allows what to do about it.
    """
    columns = Columns.of(records)
    rows = [{"label": columns.name(record), **dict(_flat(record.to_json()))} for record in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    # A field that is null in one record and nested in another has its parts only.
    parents = {name.rpartition(".")[0] for name in names}
    names = [name for name in names if name not in parents]
    for row, record in zip(rows, records, strict=True):
        row["remark"] = " ".join(beyond_bound([record])) if is_beyond(record) else ""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*names, "remark"], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _flat(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in value.items():
        if name in _LEFT_OUT:
            continue
        if isinstance(each, Mapping):
            yield from _flat(each, f"{path}{name}.")
        elif isinstance(each, list) and len(each) == 2:
            yield from ((f"{path}{name}.{end}", part) for end, part in zip(("low", "high"), each, strict=True))
        else:
            yield f"{path}{name}", each
