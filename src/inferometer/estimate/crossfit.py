"""Constants that never saw the rows they predict: fitted fold by fold, and frozen beside the measured rows."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Protocol

from inferometer.errors import UserError
from inferometer.estimate.measured.regime import Regime
from inferometer.estimate.measured.row import MeasuredRow

FITS = "fits.toml"
ALL_FITTED = "fitted rows"
# A constant that lies at the end of its range costs as much as this relative error of every row: enough to hold what the rows do not tell.
_RIDGE = 0.01
# Errors below this count as their square, so that a row which fits already does not pull.
_KNEE = 0.02
_ROUNDS = 4
_STEPS = 7
# More rows than this make a fit slower and no better.
_MOST_ROWS = 40

Constants = Mapping[str, float]
Fits = Mapping[str, Mapping[str, Mapping[str, Constants]]]
Predict = Callable[[MeasuredRow, Constants], float | None]


class Range(Protocol):
    """A constant's prior value, and the ends between which it makes physical sense; all positive."""

    @property
    def prior(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Part:
    """One fit: rows of one group that constants may be set on, and what the fit is called."""

    fold: str
    group: str
    rows: tuple[MeasuredRow, ...]


def group(row: MeasuredRow) -> str:
    """Rows that share constants: of one stack and number format, in one session. Columns of a table are often of different ones."""
    return " ".join(filter(None, (row.stack, row.dtype, row.session)))


def parts(regime: Regime, rows: Sequence[MeasuredRow]) -> Iterator[Part]:
    """Every fit of a regime: one a group with named rows, one a group and fold where folds are left out; none where nothing is fitted."""
    counted = [row for row in rows if row.counted]
    folds = {fold.name: frozenset(fold.ids) for fold in regime.split.folds(rows)}
    for name in dict.fromkeys(map(group, counted)):
        mine = [row for row in counted if group(row) == name]
        if regime.split.fitted:
            yield Part(ALL_FITTED, name, tuple(row for row in mine if row.id in regime.split.fitted))
        for fold, ids in folds.items():
            if any(row.id in ids for row in mine):
                yield Part(fold, name, tuple(row for row in mine if row.id not in ids))


def fit(rows: Sequence[MeasuredRow], ranges: Mapping[str, Range], predict: Predict) -> dict[str, float]:
    """Constants within their ranges that predict `rows` best, each rounded to four digits; the priors for no rows.

    A coordinate search over logarithms: the error is mostly a sum of terms, one a constant, and has no room for false minima that
    matter. What the rows do not determine stays near its prior.
    """
    values = {name: limits.prior for name, limits in ranges.items()}
    if not rows:
        return values
    chosen = rows if len(rows) <= _MOST_ROWS else [rows[i * len(rows) // _MOST_ROWS] for i in range(_MOST_ROWS)]

    def cost(trial: Constants) -> float:
        said = ((predict(row, trial), row.value) for row in chosen)
        errors = (abs(math.log(predicted / measured)) for predicted, measured in said if predicted is not None)
        return sum(_soft(error) for error in errors) / len(chosen) + _RIDGE * sum(_strain(trial[n], ranges[n]) for n in trial)

    for round_ in range(_ROUNDS):
        for name, limits in ranges.items():
            values[name] = _line(values, name, limits, 3.0**-round_, cost)
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def _line(values: Constants, name: str, limits: Range, share: float, cost: Callable[[Constants], float]) -> float:
    """The best value of one constant, by golden sections around the one it has over a share of its range."""
    whole = math.log(limits.high / limits.low)
    here = math.log(values[name])
    low, high = max(math.log(limits.low), here - share * whole), min(math.log(limits.high), here + share * whole)
    ratio = (math.sqrt(5) - 1) / 2
    tried: dict[float, float] = {here: cost(values)}

    def at(x: float) -> float:
        if x not in tried:
            tried[x] = cost({**values, name: math.exp(x)})
        return tried[x]

    left, right = high - ratio * (high - low), low + ratio * (high - low)
    for _ in range(_STEPS):
        if at(left) <= at(right):
            high, right = right, left
            left = high - ratio * (high - low)
        else:
            low, left = left, right
            right = low + ratio * (high - low)
    return math.exp(min(tried, key=lambda x: tried[x]))


def _soft(error: float) -> float:
    return error - _KNEE / 2 if error > _KNEE else error * error / (2 * _KNEE)


def _strain(value: float, limits: Range) -> float:
    end = limits.high if value > limits.prior else limits.low
    return 0.0 if end == limits.prior else (math.log(value / limits.prior) / math.log(end / limits.prior)) ** 2


@cache
def load_fits() -> Fits:
    """The frozen constants: by regime, fold and group."""
    return read_fits(tomllib.loads(files("inferometer.estimate.measured").joinpath(FITS).read_text("utf-8")))


def read_fits(document: Mapping[str, object]) -> Fits:
    """The constants of a file's tables. Raises UserError for a value that is no positive number."""
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for regime, folds in document.items():
        for fold, groups in _table(folds, repr(regime)).items():
            for name, values in _table(groups, f"{regime!r}: {fold!r}").items():
                where = f"{regime!r}: {fold!r}: {name!r}"
                for constant, value in _table(values, where).items():
                    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                        raise UserError(f"{FITS}: {where}: {constant!r} must be a positive number, not {value!r}")
                    found.setdefault(regime, {}).setdefault(fold, {}).setdefault(name, {})[constant] = float(value)
    return found


def fits_toml(fits: Fits) -> str:
    """The file's text."""
    lines = [
        "# Constants by regime, fold and group (stack and number format), each fitted on the rows that the split allows and no others.",
        "# Written by `python benchmarks/validation.py --refit`.",
    ]
    for regime, folds in fits.items():
        for fold, groups in folds.items():
            for name, values in groups.items():
                lines += ["", f'["{regime}"."{fold}"."{name}"]', *(f"{constant} = {value!r}" for constant, value in values.items())]
    return "\n".join(lines) + "\n"


def _table(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise UserError(f"{FITS}: {where} must be a table, not {value!r}")
    return value
