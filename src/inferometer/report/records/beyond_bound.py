"""What was faster than its bound allows, which the limits that the bound rests on are to blame for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from inferometer.bench.records.record import Record
from inferometer.report.records.phases import PHASES

BEYOND: Final = 1.02
"""A share of a bound above which it is no longer the scatter of a measurement."""
_CALIBRATED: Final = "calibrated"


def is_beyond(record: Record) -> bool:
    """Whether some phase was, by its average or its median."""
    for phase in PHASES:
        least, summary = phase.bound_ms(record), phase.summary(record)
        if least is not None and summary is not None and least > BEYOND * min(summary.mean, summary.p50):
            return True
    return False


def calibrate_command(device: str | None) -> str:
    """Measures the limits of a record's device."""
    return f"inferometer devices --calibrate --device {'cpu' if device == 'cpu' else 'cuda'}"


def beyond_bound(records: Iterable[Record], *, mark: str = "") -> tuple[str, ...]:
    """The note below shares of which those of these records, all faster than their bounds, are above 100 %; none of no records.

    mark: stands around the command, where the text may have mark-up.
    """
    found = list(records)
    if not found:
        return ()
    bases = sorted({record.bound.basis for record in found if record.bound is not None and record.bound.basis})
    commands = dict.fromkeys(calibrate_command(record.device) for record in found)
    remedy = " or ".join(f"{mark}{command}{mark}" for command in commands)
    how = "calibrate again" if _CALIBRATED in bases else "calibrate"
    why = "; they may have been measured while it was busy" if _CALIBRATED in bases else ""
    limits = f" ({' and '.join(bases)} limits)" if bases else ""
    return (f"Above 100 % of bound: the device is faster than the limits that the bound rests on{limits}{why}: {how} with {remedy}.",)
