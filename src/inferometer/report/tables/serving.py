"""What a server under load was measured at, as Markdown: times of its requests, and rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferometer.bench.records.record import Record
from inferometer.report.markup.markdown import table

_STEPS = {"TTFT": "ttft", "ITL": "itl", "TPOT": "tpot", "End to end": "e2e"}
_FIGURES = ("mean", "min", "max", "p50", "p90", "p99")


def served(record: Record) -> bool:
    """Whether a record is of a server."""
    return record.requests is not None


def serving_document(records: Sequence[Record]) -> str:
    """Everything about the loads that one server was put under."""
    parts = [_parameters(records[0]), _latency(records), _rates(records), _notes(records)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _parameters(record: Record) -> str:
    rows = [
        ("Model", record.model),
        ("Server", record.stack_version),
        ("Sequence Length", record.sequence_length),
        ("Decode Length", record.decode_length),
        ("Warmups", record.warmups),
        ("TTFT of the SLO", _ms(record.slo_ttft_ms)),
        ("TPOT of the SLO", _ms(record.slo_tpot_ms)),
    ]
    return table(("Parameter", "Value"), [(name, str(value)) for name, value in rows])


def _latency(records: Sequence[Record]) -> str:
    rows = []
    for label, name in _STEPS.items():
        for place, record in enumerate(records):
            figures = None if record.serving is None else record.serving[name]
            cells: list[str] = [record.status if record.serving is None else "-"] * len(_FIGURES)
            if figures is not None:
                cells = [f"{figures[figure]:.2f} ms" for figure in _FIGURES]
            rows.append(["" if place else label, _load(record), *cells])
    return table(("Time", "Load", "Average", "Lowest", "Highest", "p50", "p90", "p99"), rows)


def _rates(records: Sequence[Record]) -> str:
    header = ("Load", "Requests", "Failed", "Requests/s", "Tokens/s", "Goodput (requests/s)", "Client (share of a core)")
    rows = []
    for record in records:
        found = record.serving
        if found is None:
            rows.append([_load(record), str(record.requests), str(record.requests), *[record.status] * 4])
            continue
        rates = [_rate(found[name]) for name in ("requests_s", "output_tok_s", "goodput")]
        rows.append([_load(record), str(record.requests), str(found["failed"]), *rates, f"{found['client']['cpu_share']:.0%}"])
    return table(header, rows)


def _notes(records: Sequence[Record]) -> str:
    lines = []
    for record in records:
        said = [record.evidence] if record.evidence else []
        if record.serving is not None:
            said += [f"{count} requests failed: {kind}" for kind, count in record.serving["failures"].items()]
            said += record.serving["notes"]
        lines += [f"- {_load(record)}: {words}" for words in said]
    return "\n".join(lines)


def _load(record: Record) -> str:
    return f"{record.batch_size} at a time" if record.request_rate is None else f"{record.request_rate:g} a second"


def _rate(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:g} ms"
