"""Where the time of a row that is predicted badly is expected to go: its ops, the longest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from inferometer.estimate.crossfit import ALL_FITTED, Constants, Fits, group, load_fits
from inferometer.estimate.measured.row import MeasuredRow
from inferometer.estimate.validation import OURS, Report, Scored

# Ops of less than this share of the time are put together.
_SMALL = 0.01


class Part(Protocol):
    """One op's part of a row: all its runs together."""

    @property
    def name(self) -> str: ...

    @property
    def ms(self) -> float: ...

    @property
    def bound_ms(self) -> float: ...

    @property
    def binds(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Sum:
    """Several ops together."""

    name: str
    ms: float
    bound_ms: float
    binds: str


OpTimes = Callable[[MeasuredRow, Constants], Sequence[Part]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A row with its prediction and the parts of it."""

    row: MeasuredRow
    predicted: float
    parts: tuple[Part, ...]

    @property
    def device_ms(self) -> float:
        """What the parts take together."""
        return sum(part.ms for part in self.parts)


def explain(reports: Sequence[Report], *, op_times: OpTimes | None = None, fits: Fits | None = None) -> tuple[Explanation, ...]:
    """The worst row of every regime of times whose gate is missed."""
    chosen, frozen = op_times or _estimator(), load_fits() if fits is None else fits
    found = []
    for report in reports:
        if report.passes is not False or not report.regime.gates or report.regime.quantity != "time_ms":
            continue
        worst = _worst(report)
        if worst is not None:
            constants = _constants(report, worst, frozen.get(report.regime.constants or report.regime.name, {}))
            parts = _named(chosen(worst.row, constants))
            found.append(Explanation(row=worst.row, predicted=worst.predictions[OURS], parts=parts))
    return tuple(found)


def _worst(report: Report) -> Scored | None:
    held = [each for each in report.scored if each.held_out and OURS in each.predictions]
    return max(held, key=lambda each: abs(each.predictions[OURS] / each.row.value - 1), default=None)


def _constants(report: Report, scored: Scored, fits: Mapping[str, Mapping[str, Constants]]) -> Constants:
    folds = report.regime.split.folds([each.row for each in report.scored if each.key == scored.key])
    mine = (fold.name for fold in folds if fold.key == scored.key and scored.row.id in fold.ids)
    return fits.get(next(mine, ALL_FITTED), {}).get(group(scored.row), {})


def _named(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The longest first, ops of one name that one thing binds (of several steps) together, and so are all that are short."""
    sums: dict[tuple[str, str], Sum] = {}
    for part in parts:
        key = (part.name, part.binds)
        before = sums.get(key, Sum(part.name, 0.0, 0.0, part.binds))
        sums[key] = Sum(part.name, before.ms + part.ms, before.bound_ms + part.bound_ms, part.binds)
    whole = sum(part.ms for part in parts)
    long = sorted((part for part in sums.values() if part.ms >= _SMALL * whole), key=lambda part: -part.ms)
    short = [part for part in sums.values() if part.ms < _SMALL * whole]
    if not short:
        return tuple(long)
    rest = Sum(f"{len(short)} others", sum(part.ms for part in short), sum(part.bound_ms for part in short), "")
    return (*long, rest)


def _estimator() -> OpTimes:
    from inferometer.estimate.predict import op_times

    return op_times
