"""Old records against new ones: which figures changed by more than they scatter, what is new, missing, or ended otherwise."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from inferometer.bench.records.record import Record
from inferometer.bench.records.statistics import Summary
from inferometer.report.compare.difference import Difference, difference, significant
from inferometer.report.records.columns import settings

Verdict = Literal["slower", "faster", "alike", "more", "less"]
# A difference below this share is nobody's concern, however surely it is there.
TOLERANCE: Final = 0.02
# Without a repetition nothing is known of the scatter; a machine that is shared has been seen to be off by as much.
UNREPEATED: Final = 0.25
# Peaks of memory do not scatter, but where allocators round they move a little.
MEMORY_TOLERANCE: Final = 0.05
LEVEL: Final = 0.05
SERVED: Final = ("ttft", "tpot", "e2e")
_TIMES = ("prefill_ms", "decode_token_ms", "forward_ms", "total_ms")
_LOST = ("oom", "error", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure of a case in both: a time with its runs, or a peak of memory in bytes. ratio is new over old."""

    old: Record
    new: Record
    figure: str
    verdict: Verdict
    ratio: float
    difference: Difference | None = None

    @property
    def chance(self) -> float | None:
        """How likely chance alone gives as much; None for what has no runs, or none that was repeated."""
        return None if self.difference is None else self.difference.chance

    @property
    def regressed(self) -> bool:
        """Whether it is worse by more than chance and tolerance."""
        return self.verdict in ("slower", "more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """changes: every figure that both have. ended: cases whose status differs, old and new. added, missing: cases of one side alone."""

    changes: tuple[Change, ...]
    ended: tuple[tuple[Record, Record], ...]
    added: tuple[Record, ...]
    missing: tuple[Record, ...]
    tolerance: float

    @property
    def broken(self) -> tuple[tuple[Record, Record], ...]:
        """Cases that were measured and now fail."""
        return tuple((old, new) for old, new in self.ended if old.status == "ok" and new.status in _LOST)

    @property
    def empty(self) -> bool:
        """Whether no figure and no ending of any case was compared, so that nothing can be said of old and new."""
        return not self.changes and not self.ended

    @property
    def regressed(self) -> bool:
        """Whether anything is worse."""
        return bool(self.broken) or any(change.regressed for change in self.changes)


def compare(old: Sequence[Record], new: Sequence[Record], *, tolerance: float = TOLERANCE) -> Comparison:
    """Compares cases by their settings, whatever machine they ran on; of a case that a side has twice, the latest record.

    A time is slower, or faster, if its median changed by more than `tolerance` and the change is more than chance: Welch's test on the
    logarithms of the runs, two-sided, such that of all changes so found at most 5 % are chance (Benjamini and Hochberg). Where neither
    side repeated a run, it is if it changed by more than a quarter. A peak of memory changed if it did by more than 5 %.
    """
    before, after = _by_case(old, new), _by_case(new, old)
    pairs = [(record, after[case]) for case, record in before.items() if case in after]
    changes = [change for a, b in pairs for change in _times(a, b)]
    tested = [change for change in changes if change.chance is not None]
    found = significant([change.chance or 0.0 for change in tested], LEVEL)
    real = {id(change) for change, so in zip(tested, found, strict=True) if so}
    judged = [_judged(change, id(change) in real, tolerance) for change in changes]
    return Comparison(
        changes=tuple(sorted([*judged, *(peak for a, b in pairs if (peak := _peak(a, b)) is not None)], key=_order)),
        ended=tuple((a, b) for a, b in pairs if a.status != b.status),
        added=tuple(record for case, record in after.items() if case not in before),
        missing=tuple(record for case, record in before.items() if case not in after),
        tolerance=tolerance,
    )


def _by_case(records: Sequence[Record], others: Sequence[Record]) -> dict[tuple[Hashable, ...], Record]:
    """The latest record of each case. Where a side has several devices, each device has its own cases."""
    several = any(len({record.device_name for record in side}) > 1 for side in (records, others))
    found: dict[tuple[Hashable, ...], Record] = {}
    for record in sorted(records, key=lambda r: r.started_at):
        case = (*settings(record).items(), getattr(record, "column", None), record.device_name if several else None)
        found[case] = record
    return found


def _times(old: Record, new: Record) -> list[Change]:
    """Every time that both have; the whole run only where it is not the sum of two that are compared."""
    found: list[Change] = []
    for figure in _TIMES:
        before: Summary | None = getattr(old, figure)
        after: Summary | None = getattr(new, figure)
        if before is None or after is None or (figure == "total_ms" and found) or not before.min or not after.min:
            continue
        seen = difference(before, after)
        found.append(Change(old=old, new=new, figure=figure, verdict="alike", ratio=seen.ratio, difference=seen))
    for figure in SERVED:
        # Requests of one run queue behind each other: they are many and still one run.
        before_ms, after_ms = served_ms(old, figure), served_ms(new, figure)
        if before_ms and after_ms:
            seen = Difference(ratio=after_ms / before_ms, interval=None, chance=None)
            found.append(Change(old=old, new=new, figure=figure, verdict="alike", ratio=seen.ratio, difference=seen))
    return found


def served_ms(record: Record, figure: str) -> float | None:
    """The median of a served case's times."""
    summary = (record.serving or {}).get(figure)
    return None if summary is None else float(summary["p50"])


def _judged(change: Change, more_than_chance: bool, tolerance: float) -> Change:
    least = UNREPEATED if change.chance is None else tolerance
    if not more_than_chance and change.chance is not None:
        return change
    if change.ratio > 1 + least:
        return replace(change, verdict="slower")
    return replace(change, verdict="faster") if change.ratio < 1 / (1 + least) else change


def _peak(old: Record, new: Record) -> Change | None:
    before, after = old.peak_memory_bytes.allocated, new.peak_memory_bytes.allocated
    if not before or after is None:
        return None
    ratio = after / before
    verdict: Verdict = "more" if ratio > 1 + MEMORY_TOLERANCE else "less" if ratio < 1 - MEMORY_TOLERANCE else "alike"
    return Change(old=old, new=new, figure="peak_memory_bytes", verdict=verdict, ratio=ratio)


def _order(change: Change) -> tuple[int, float]:
    """Worst first, then what got better, then what did not change."""
    rank = 0 if change.regressed else 2 if change.verdict == "alike" else 1
    return rank, -abs(change.ratio - 1) if rank < 2 else 0.0
