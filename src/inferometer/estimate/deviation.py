"""How far predictions are from measurements, relative to the measured value, and the committed table of it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from inferometer.errors import UserError
from inferometer.hardware.table import Table

ERRORS = "errors.toml"
# Of measured over predicted: nine rows in ten lie between these.
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Errors over rows. mean, worst: of |predicted / measured - 1|. low, high: measured / predicted of nine rows in ten is between."""

    rows: int
    mean: float
    worst: float
    worst_id: str
    low: float
    high: float

    @classmethod
    def of(cls, rows: Sequence[tuple[str, float, float]]) -> Deviation:
        """Over (id, measured, predicted). Raises ValueError for no rows, or for figures that are not positive."""
        if not rows:
            raise ValueError("an error needs at least one row")
        if any(not (math.isfinite(figure) and figure > 0) for _, *figures in rows for figure in figures):
            raise ValueError("measured and predicted figures are positive numbers")
        errors = [(abs(predicted / measured - 1), name) for name, measured, predicted in rows]
        worst, worst_id = max(errors, key=lambda pair: pair[0])
        ratios = sorted(measured / predicted for _, measured, predicted in rows)
        return cls(
            rows=len(rows),
            mean=sum(error for error, _ in errors) / len(errors),
            worst=worst,
            worst_id=worst_id,
            low=_quantile(ratios, _LOW),
            high=_quantile(ratios, _HIGH),
        )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest of sorted values, in proportion."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@cache
def load_deviations() -> Mapping[str, Deviation]:
    """The committed errors of this product's predictions on held-out rows, by regime."""
    return read_deviations(tomllib.loads(files("inferometer.estimate.measured").joinpath(ERRORS).read_text("utf-8")))


def read_deviations(document: Mapping[str, object]) -> Mapping[str, Deviation]:
    """The errors of a file's tables. Raises UserError naming the regime and the key that is wrong."""
    found = {}
    for regime, values in document.items():
        if not isinstance(values, dict):
            raise UserError(f"{ERRORS}: {regime} must be a table, not {values!r}")
        table = Table(values, f"{ERRORS}: {regime}")
        found[regime] = Deviation(
            rows=table.count("rows"),
            mean=_share(table, "mean_percent", values),
            worst=_share(table, "worst_percent", values),
            worst_id=table.text("worst_id"),
            low=table.number("low"),
            high=table.number("high"),
        )
        table.finish()
    return MappingProxyType(found)


def _share(table: Table, key: str, values: Mapping[str, object]) -> float:
    """Unlike other figures, an error can be 0."""
    return 0.0 if table.has(key) and values[key] in (0, 0.0) else table.number(key) / 100


def deviations_toml(errors: Mapping[str, Deviation]) -> str:
    """The file's text: percentages to two decimals, factors to four digits."""
    lines = [
        "# Errors of the estimator's predictions on rows that were not fitted, by regime; low and high: between which measured / predicted",
        "# of nine rows in ten lies. Written by `python benchmarks/validation.py`.",
    ]
    for regime, error in errors.items():
        lines += ["", f'["{regime}"]', f"rows = {error.rows}", f"mean_percent = {100 * error.mean:.2f}"]
        lines += [f"worst_percent = {100 * error.worst:.2f}", f'worst_id = "{error.worst_id}"']
        lines += [f"low = {error.low:.4g}", f"high = {error.high:.4g}"]
    return "\n".join(lines) + "\n"
