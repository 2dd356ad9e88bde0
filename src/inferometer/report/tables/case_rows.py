"""A case as a row, and a column's cases as one: the cells that all formats have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from inferometer.bench.records.record import Record
from inferometer.bench.records.statistics import Summary
from inferometer.report.records.columns import Columns, length
from inferometer.report.records.expectation import FIGURES, error
from inferometer.report.records.phases import DECODE, FORWARD, PREFILL, WHOLE, main_phase, ms, short

CASE_HEADER: Final = (
    "Column",
    "Model",
    "Batch",
    "Tokens",
    "Status",
    "Prefill ms",
    "Decode ms",
    "Other ms",
    "Spread",
    "Tokens/s",
    "% of bound",
    "Binds",
    "Predicted",
    "Peak GiB",
    "J/token",
    "Started",
)
COLUMN_HEADER: Final = ("Column", "Cases ok", "Largest batch", "Most tokens/s", "Least ms a step", "Most of the bound", "Mean error")


def case_cells(record: Record, columns: Columns) -> tuple[str, ...]:
    """One record under CASE_HEADER."""
    phase = main_phase(record)
    summary = None if phase is None else phase.summary(record)
    others = [each.summary(record) for each in (FORWARD, WHOLE) if phase is each]
    rate = tok_s(record)
    share = None if phase is None else phase.share_of_bound(record)
    off = next((found for each in FIGURES if phase and each.name == phase.time and (found := error(record, each)) is not None), None)
    served = record.serving or {}
    peak, joules = record.peak_memory_bytes.allocated, (record.energy or {}).get("j_per_token")
    return (
        columns.name(record),
        record.model,
        str(record.batch_size),
        length(record),
        record.status,
        _median(PREFILL.summary(record)),
        _median(DECODE.summary(record)),
        ms(served["e2e"]["p50"]) if served.get("e2e") else _median(others[0] if others else None),
        "-"
        if summary is None or not summary.p50 or len(summary.samples) < 2
        else f"{100 * (summary.max - summary.min) / summary.p50:.1f} %",
        "-" if rate is None else short(rate),
        "-" if share is None else f"{100 * share:.1f} %",
        (phase and phase.binds(record)) or "-",
        "-" if off is None else f"{100 * off:+.1f} %",
        "-" if peak is None else f"{peak / 2**30:.2f}",
        "-" if joules is None else short(joules),
        record.started_at[:16].replace("T", " "),
    )


def column_cells(records: Sequence[Record], columns: Columns) -> Iterator[tuple[str, ...]]:
    """What each column came to, under COLUMN_HEADER."""
    for name in columns.names:
        mine = [record for record in records if columns.name(record) == name]
        ok = [record for record in mine if record.status == "ok"]
        largest = "-" if not ok else str(max(record.batch_size for record in ok))
        yield (name, f"{len(ok)} of {len(mine)}", largest, *_best(ok), _mean_error(ok))


def _best(ok: Sequence[Record]) -> tuple[str, str, str]:
    # Prompt tokens of a forward are another thing than generated ones.
    decoding = [record for record in ok if record.decode_token_ms is not None] or ok
    rates = [(rate, record) for record in decoding if (rate := tok_s(record)) is not None]
    steps = [(summary.p50, record) for record in ok if (summary := record.decode_token_ms) is not None]
    shares = [(share, record) for record in ok if (phase := main_phase(record)) and (share := phase.share_of_bound(record)) is not None]
    fastest = max(rates, key=lambda each: each[0], default=None)
    least = min(steps, key=lambda each: each[0], default=None)
    nearest = max(shares, key=lambda each: each[0], default=None)
    return (
        "-" if fastest is None else f"{short(fastest[0])} at batch {fastest[1].batch_size}",
        "-" if least is None else f"{ms(least[0])} at batch {least[1].batch_size}",
        "-" if nearest is None else f"{percent(nearest[0])} at batch {nearest[1].batch_size}",
    )


def tok_s(record: Record) -> float | None:
    """Tokens a second of decode, or of what else the case does; of a server, those of all its requests."""
    phase = main_phase(record)
    found: float | None = (record.serving or {}).get("output_tok_s") if phase is None else phase.tok_s(record)
    return found


def percent(share: float) -> str:
    """Two digits or more."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _mean_error(ok: Sequence[Record]) -> str:
    found = [abs(off) for record in ok for each in FIGURES[:3] if (off := error(record, each)) is not None]
    return "-" if not found else f"{100 * sum(found) / len(found):.1f} %"


def _median(summary: Summary | None) -> str:
    return "-" if summary is None else ms(summary.p50)
