"""Predictions beside measurements, by regime: this product's, those of simpler rules, and the published ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inferometer.errors import UserError
from inferometer.estimate.baselines import board_power, peak_roofline_ms, scale, weights_and_cache_gib
from inferometer.estimate.crossfit import ALL_FITTED, Constants, Fits, Predict, group, load_fits
from inferometer.estimate.deviation import Deviation
from inferometer.estimate.measured.load import load_regimes, load_rows
from inferometer.estimate.measured.regime import Key, Regime
from inferometer.estimate.measured.row import MeasuredRow

OURS = "inferometer"
PEAK, CONSTANT = "peak roofline", "constant efficiency"
BOARD, SCALED = "board power", "scaled board power"
HELD = "weights + cache"
PUBLISHED = "its own estimate"
METHODS = (OURS, PEAK, CONSTANT, BOARD, SCALED, HELD, PUBLISHED)

_SIMPLE: Mapping[str, Callable[[MeasuredRow], float | None]] = {
    PEAK: peak_roofline_ms,
    BOARD: board_power,
    HELD: weights_and_cache_gib,
    PUBLISHED: lambda row: row.published_estimate,
}
# A rule times one factor, which is set on the rows that the split allows.
_FACTORED = {CONSTANT: PEAK, SCALED: BOARD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A row and what each method says of it. key: what was left out to predict it; a row stands once for each key of its regime's split.

    held_out: whether it counts. missing: why this product has no prediction, None where it has.
    """

    row: MeasuredRow
    key: Key | None
    held_out: bool
    predictions: Mapping[str, float]
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A regime's rows, scored."""

    regime: Regime
    scored: tuple[Scored, ...]

    def deviation(self, method: str = OURS) -> Deviation | None:
        """Of held-out rows. Where rows were left out in more than one way, the way with the worst mean. None without predictions."""
        found = [self.deviation_of(method, key) for key in self.keys]
        return max((error for error in found if error), key=lambda error: error.mean, default=None)

    def deviation_of(self, method: str, key: Key | None) -> Deviation | None:
        """Of held-out rows that were predicted with `key` left out."""
        chosen = [each for each in self.scored if each.held_out and each.key == key and method in each.predictions]
        return Deviation.of([(each.row.id, each.row.value, each.predictions[method]) for each in chosen]) if chosen else None

    @property
    def keys(self) -> tuple[Key | None, ...]:
        """What was left out, for each way; (None,) where rows are named or nothing is fitted."""
        return tuple(dict.fromkeys(each.key for each in self.scored))

    @property
    def missing(self) -> tuple[Scored, ...]:
        """Held-out rows without a prediction of ours."""
        return tuple(each for each in self.scored if each.held_out and each.missing is not None)

    @property
    def passes(self) -> bool | None:
        """Whether the gate holds: mean and worst row, over every held-out row; None for a regime without a gate."""
        gate, found = self.regime.gate, self.deviation()
        if gate is None:
            return None
        if found is None or self.missing:
            return False
        worst = max(error.worst for key in self.keys if (error := self.deviation_of(OURS, key)))
        return found.mean <= gate and (self.regime.worst_gate is None or worst <= self.regime.worst_gate)


def validate(regime: str | None = None, *, predict: Predict | None = None, fits: Fits | None = None) -> tuple[Report, ...]:
    """Every regime, or one, scored. `predict` and `fits` stand in for the estimator and the frozen constants.

    Raises UserError, naming the regimes, for an unknown one.
    """
    rows = {name: load_rows(name) for name in ([regime] if regime is not None else load_regimes())}
    chosen = predict or _estimator()
    frozen = load_fits() if fits is None else fits
    regimes = {name: load_regimes()[name] for name in rows}
    return tuple(score(regimes[name], mine, chosen, frozen.get(regimes[name].constants or name, {})) for name, mine in rows.items())


def score(regime: Regime, rows: Sequence[MeasuredRow], predict: Predict, fits: Mapping[str, Mapping[str, Constants]]) -> Report:
    """Each row once for each key that the split leaves out, with the constants of the fold that it is in."""
    simple = {row.id: {name: value for name, rule in _SIMPLE.items() if (value := rule(row)) is not None} for row in rows}
    folds = regime.split.folds(rows)
    scored = []
    for key in regime.split.leave_out or (None,):
        inside = {name: fold for fold in folds if fold.key == key for name in fold.ids}
        for row in rows:
            fold = inside.get(row.id)
            known = {**simple[row.id], **_factored(regime, rows, simple, row, None if fold is None else frozenset(fold.ids))}
            name = ALL_FITTED if fold is None else fold.name
            ours, missing = _predicted(predict, row, fits.get(name, {}).get(group(row), {}))
            if ours is not None:
                known = {OURS: ours, **known}
            held_out = row.counted and row.id not in regime.split.fitted
            scored.append(Scored(row=row, key=key, held_out=held_out, predictions=known, missing=missing))
    return Report(regime=regime, scored=tuple(scored))


def _predicted(predict: Predict, row: MeasuredRow, constants: Constants) -> tuple[float | None, str | None]:
    try:
        said = predict(row, constants)
    except UserError as error:
        return None, str(error)
    return said, None if said is not None else f"{row.quantity} in mode {row.mode} is not modelled"


def _factored(
    regime: Regime, rows: Sequence[MeasuredRow], simple: Mapping[str, Mapping[str, float]], row: MeasuredRow, fold: frozenset[str] | None
) -> dict[str, float]:
    """The factored rules for `row`: their factor is set on the fitted rows, or on those outside the fold."""
    allowed = [other for other in rows if other.counted and (other.id in regime.split.fitted if fold is None else other.id not in fold)]
    found = {}
    for name, rule in _FACTORED.items():
        known = [(other.value, simple[other.id][rule]) for other in allowed if rule in simple[other.id]]
        if known and rule in simple[row.id]:
            found[name] = simple[row.id][rule] * scale([measured for measured, _ in known], [said for _, said in known])
    return found


def _estimator() -> Predict:
    from inferometer.estimate.predict import predict

    return predict
