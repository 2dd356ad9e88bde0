"""All cases in one table that a reader sorts and filters, and the tables of columns, environments and failures."""

from __future__ import annotations

import json
from collections.abc import Sequence

from inferometer.bench.records.record import Record
from inferometer.model.byte_size import gib
from inferometer.report.markup.html import escaped, scrolling, table
from inferometer.report.page.chart import colour_class
from inferometer.report.page.section import Section
from inferometer.report.records.beyond_bound import beyond_bound, is_beyond
from inferometer.report.records.columns import Columns, length
from inferometer.report.records.host_state import state_of
from inferometer.report.tables.case_rows import CASE_HEADER, COLUMN_HEADER, case_cells, column_cells

# Columns whose cells sort as numbers.
_NUMBERS = frozenset(CASE_HEADER) - {"Column", "Model", "Status", "Binds", "Started"}


def cases_section(records: Sequence[Record], columns: Columns) -> Section:
    """Every record a row."""
    about = (
        "Medians. Other: a forward, a whole run whose prefill and decode share sweeps, or a request to a server. Spread: slowest less "
        "fastest run, over the median. Tokens/s, % of bound and Predicted (how far the prediction was off) are of decode where the "
        "case decodes."
    )
    about = " ".join((about, *beyond_bound(filter(is_beyond, records))))
    statuses = list(dict.fromkeys(record.status for record in records))
    options = "".join(f"<option>{escaped(status)}</option>" for status in statuses)
    controls = (
        "<form class=filter role=search><label>Filter <input type=search id=filter autocomplete=off "
        'placeholder="every word must occur"></label>'
        f'<label>Status <select id=status><option value="">all</option>{options}</select></label>'
        f"<output id=shown aria-live=polite>{len(records)} of {len(records)} cases</output></form>"
    )
    kinds = {name: " class=n" if name in _NUMBERS else "" for name in CASE_HEADER}
    head = "".join(f"<th scope=col{kinds[name]}><button type=button>{escaped(name)}</button>" for name in CASE_HEADER)
    rows = (case_cells(record, columns) for record in records)
    body = "".join(_cells(name, cells, columns) for name, *cells in rows)
    content = f"{controls}{scrolling('All cases')}<table id=cases><thead><tr>{head}<tbody>{body}</table></div>"
    return Section(slug="table", title="All cases", about=about, content=content)


def _cells(name: str, cells: Sequence[str], columns: Columns) -> str:
    """A row that begins with a column's name beside its colour."""
    first = f'<th scope=row class="k {colour_class(columns.names.index(name))}">{escaped(name)}'
    return f"<tr>{first}{''.join(f'<td>{escaped(cell)}' for cell in cells)}"


def columns_table(records: Sequence[Record], columns: Columns) -> str:
    """What each column came to: the legend of the page."""
    rows = [_cells(name, cells, columns) for name, *cells in column_cells(records, columns)]
    head = "".join(f"<th scope=col>{cell}" for cell in COLUMN_HEADER)
    return f"{scrolling('Columns')}<table class=columns><thead><tr>{head}<tbody>{''.join(rows)}</table></div>"


def environment_section(records: Sequence[Record]) -> Section:
    """What the records say of machine and software, one column for each environment that differs."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(json.dumps(_flat(record), sort_keys=True), []).append(record)
    kinds = [({**_flat(alike[0]), **state_of(alike)}, len(alike)) for alike in found.values()]
    if not any(len(flat) > 1 for flat, _ in kinds):
        return Section(slug="environment", title="Environment", missing="the records do not say where they were taken.")
    names = list(dict.fromkeys(name for flat, _ in kinds for name in flat))
    rows = [[name, *(flat.get(name, "-") for flat, _ in kinds)] for name in names]
    header = ("", *(f"{count} case{'s' * (count != 1)}" for _, count in kinds))
    return Section(slug="environment", title="Environment", content=table(header, rows, caption="Environment"))


def _flat(record: Record) -> dict[str, str]:
    """What is known, without sensors, whose readings are of a moment."""
    known = {"device": record.device_name or record.device or "-", **record.environment}
    plain = {name: value for name, value in known.items() if value is not None and not isinstance(value, dict | list)}
    return {name.removesuffix("_bytes").replace("_", " "): _said(name, value) for name, value in plain.items()}


def _said(name: str, value: object) -> str:
    return gib(value, digits=1) if name.endswith("_bytes") and isinstance(value, int) else str(value)


def failures_section(records: Sequence[Record], columns: Columns) -> Section:
    """Every case without a result, with its evidence."""
    failed = [record for record in records if record.status != "ok"]
    if not failed:
        return Section(slug="failures", title="Evidence of failures", missing="no case failed and none was skipped.")
    rows = [
        [columns.name(record), record.model, str(record.batch_size), length(record), record.status, record.evidence or "-"]
        for record in failed
    ]
    header = ("Column", "Model", "Batch", "Tokens", "Status", "Evidence")
    return Section(slug="failures", title="Evidence of failures", content=table(header, rows, caption="Evidence of failures"))
