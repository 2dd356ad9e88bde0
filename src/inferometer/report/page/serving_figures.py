"""What requests to a server took, against the load that they came with."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from inferometer.bench.records.record import Record
from inferometer.report.markup.html import escaped, table
from inferometer.report.page.chart import Chart, Line, Point, scale, steps
from inferometer.report.page.section import Section, figure, figures
from inferometer.report.records.columns import Columns, settings
from inferometer.report.records.phases import ms, short

_TIMES: Final = (
    ("ttft", "Time to the first token", "ms"),
    ("tpot", "Time an output token", "ms a token"),
    ("e2e", "Whole request", "ms"),
)
_RATES: Final = (("output_tok_s", "Throughput", "generated tokens/s"), ("goodput", "Goodput", "requests/s within the SLO"))
_LOADS: Final = ("request_rate", "batch_size")


def serving_section(records: Sequence[Record], columns: Columns) -> Section | None:
    """Charts and a table of the cases that a server answered; None where there is none."""
    served = [record for record in records if record.serving]
    if not served:
        return None
    parts = []
    for name, of in _groups(served, columns).items():
        charts = [_chart(name, key, title, label, of, columns) for key, title, label in (*_TIMES, *_RATES)]
        kept = [chart for chart in charts if chart]
        parts.append(f"<h3>{escaped(name)}</h3>{figures(kept)}" if kept else "")
    about = (
        "Marks are medians, the lines above them reach to the 99th percentile. Failed requests are counted and are in no other figure; "
        "times between tokens are of tokens, not of the pieces that they came in."
    )
    return Section(slug="serving", title="Serving", about=about, content="".join(parts) + _table(served, columns))


def load(record: Record) -> tuple[str, float]:
    """What the load of a served case is called, and how much it was: requests a second, or at any time."""
    rate = getattr(record, "request_rate", None)
    return ("requests/s", float(rate)) if rate is not None else ("concurrent requests", float(record.batch_size))


def _groups(records: Sequence[Record], columns: Columns) -> dict[str, dict[str, list[Record]]]:
    """{workload: {column: its records by ascending load}}: those alike in all but the load."""
    found: dict[tuple[Hashable, ...], dict[str, list[Record]]] = {}
    for record in records:
        asked = {name: value for name, value in settings(record).items() if name not in (*_LOADS, "requests", "seed")}
        asked.pop("backend")
        found.setdefault((load(record)[0], *asked.items()), {}).setdefault(columns.name(record), []).append(record)
    named: dict[str, dict[str, list[Record]]] = {}
    for key, of in found.items():
        first = next(iter(of.values()))[0]
        name = f"{first.model}, {first.sequence_length} prompt + {first.decode_length} new tokens, by {key[0]}"
        rows = {column: sorted(each, key=lambda r: load(r)[1]) for column, each in of.items()}
        named[name if name not in named else f"{name} ({len(named) + 1})"] = rows
    return named


def _chart(name: str, key: str, title: str, label: str, of: Mapping[str, Sequence[Record]], columns: Columns) -> str:
    lines = []
    for column, records in of.items():
        points = tuple(point for record in records if (point := _point(record, key)) is not None)
        if points:
            lines.append(Line(colour=columns.names.index(column), name=column, points=points))
    loads = sorted({point.x for line in lines for point in line.points})
    if len(loads) < 2:
        return ""
    ends = [end for line in lines for point in line.points for end in (point.y, point.high) if end is not None]
    unit = load(next(iter(of.values()))[0])[0]
    chart = Chart(title=f"{title}: {name}", across=steps(unit, loads), up=scale(label, ends), lines=tuple(lines), ticks=tuple(loads))
    return figure(title, chart.svg())


def _point(record: Record, key: str) -> Point | None:
    found = (record.serving or {}).get(key)
    if found is None:
        return None
    unit, at = load(record)
    if isinstance(found, Mapping):
        hint = f"{at:g} {unit}: {ms(found['p50'])} ms (p99 {ms(found['p99'])} ms)"
        return Point(x=at, y=found["p50"], low=found["p50"], high=found["p99"], hint=hint)
    return Point(x=at, y=float(found), hint=f"{at:g} {unit}: {short(float(found))} a second")


def _table(records: Sequence[Record], columns: Columns) -> str:
    times = tuple(f"{title}, p50 / p99 (ms)" for title in (*(title for _, title, _ in _TIMES), "Between tokens"))
    rows = []
    for record in records:
        found: Mapping[str, Any] = record.serving or {}
        figures_of = [pair(found.get(key)) for key in ("ttft", "tpot", "e2e", "itl")]
        rates = ["-" if (rate := found.get(key)) is None else short(float(rate)) for key in ("requests_s", "output_tok_s", "goodput")]
        unit, at = load(record)
        notes = "; ".join(map(str, found.get("notes") or ())) or "-"
        counts = (str(found.get("served", "-")), str(found.get("failed", "-")))
        rows.append([columns.name(record), f"{at:g} {unit}", *counts, *figures_of, *rates, notes])
    header = ("Column", "Load", "Served", "Failed", *times, "Requests/s", "Tokens/s", "Goodput/s", "Notes")
    return table(header, rows, caption="Served requests")


def pair(summary: Mapping[str, float] | None) -> str:
    """Median and 99th percentile in milliseconds."""
    return "-" if summary is None else f"{ms(summary['p50'])} / {ms(summary['p99'])}"
