"""The rows of the benchmark's tables: which steps a case has, how its size is called, and what stands where it failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferometer.bench.records.record import Record

_FAILED = {"oom": "OOM", "error": "error", "timeout": "timeout", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class Step:
    """A group of rows: `time` names the record's latency, `bound` the time of the bound and of the prediction beside it, and
    `bound_steps(record)` how many of that unit it spans.
    """

    label: str
    time: str
    bound: str
    bound_steps: Callable[[Record], int] = lambda record: 1


PREFILL = Step("Prefill", "prefill_ms", "prefill_ms")
TOKEN = Step("Decode (token)", "decode_token_ms", "decode_token_ms")
TOTAL = Step("Decode (total)", "decode_total_ms", "decode_token_ms", lambda record: record.steps)
WHOLE = Step("Total", "total_ms", "total_ms")
FORWARD = Step("Forward", "forward_ms", "forward_ms")


def steps_of(records: Sequence[Record]) -> tuple[Step, ...]:
    """Those of cases that were asked the same, in the order of the table."""
    first = records[0]
    if first.forward_only:
        return (FORWARD,)
    if first.decode_only:
        return (TOKEN, TOTAL)
    phases = (PREFILL, TOKEN, TOTAL) if first.steps else (PREFILL,)
    if first.admission is None:
        return phases
    return (*phases, WHOLE) if any(r.prefill_ms is not None for r in records) else (WHOLE,)


def size_of(record: Record) -> str:
    """The batch size, and the context where decoding began at one."""
    return f"{record.batch_size} at {record.sequence_length}" if record.decode_only else str(record.batch_size)


def failed(record: Record) -> str:
    """What stands in the place of a time that is not there."""
    return _FAILED.get(record.status, "-")
