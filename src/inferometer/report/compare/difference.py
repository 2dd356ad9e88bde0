"""Whether two sets of runs differ by more than they scatter: their ratio, its interval, and how often chance alone gives as much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inferometer.bench.records.statistics import Summary

_PRECISION = 1e-12
_MOST_TERMS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """ratio: of the medians, new over old. interval: of the ratio, at 95 %; None where no run was repeated.

    chance: how likely as large a difference of the means is, either way, where there is none; None without an interval.
    """

    ratio: float
    interval: tuple[float, float] | None
    chance: float | None


def difference(old: Summary, new: Summary) -> Difference:
    """Welch's test on the logarithms of the runs, which makes it one of ratios: runs scatter in proportion, and not evenly to both sides.

    Where one side ran once, its runs are taken to scatter like the other's. Raises ValueError for a time of zero.
    """
    if old.min <= 0 or new.min <= 0:
        raise ValueError("a run that took no time has no ratio")
    ratio = new.p50 / old.p50
    before, after = [math.log(sample) for sample in old.samples], [math.log(sample) for sample in new.samples]
    spread = _spread(before, after)
    if spread is None:
        return Difference(ratio=ratio, interval=None, chance=None)
    error, freedom = spread
    shift = _mean(after) - _mean(before)
    if error == 0:
        # Runs that are equal to the last digit leave nothing to chance.
        return Difference(ratio=ratio, interval=(math.exp(shift), math.exp(shift)), chance=1.0 if abs(shift) < _PRECISION else 0.0)
    reach = t_quantile(0.975, freedom) * error
    chance = 2 * t_tail(abs(shift) / error, freedom)
    return Difference(ratio=ratio, interval=(math.exp(shift - reach), math.exp(shift + reach)), chance=chance)


def _spread(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The standard error of the difference of the means, and its degrees of freedom (Welch 1947); None where nothing was repeated."""
    counts = (len(before), len(after))
    if max(counts) < 2:
        return None
    if min(counts) < 2:
        many = max(before, after, key=len)
        return math.sqrt(_variance(many) * (1 / counts[0] + 1 / counts[1])), len(many) - 1.0
    parts = [_variance(each) / len(each) for each in (before, after)]
    total = sum(parts)
    if total == 0:
        return 0.0, 1.0
    freedom = total**2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (before, after), strict=True))
    return math.sqrt(total), freedom


def significant(chances: Sequence[float], level: float = 0.05) -> list[bool]:
    """Which of many differences are not chance, such that of those found at most a share `level` is (Benjamini and Hochberg 1995)."""
    order = sorted(range(len(chances)), key=lambda index: chances[index])
    found = max((place for place, index in enumerate(order, start=1) if chances[index] <= level * place / len(chances)), default=0)
    chosen = set(order[:found])
    return [index in chosen for index in range(len(chances))]


def t_tail(value: float, freedom: float) -> float:
    """How often Student's t with `freedom` degrees is above a value that is not negative (Abramowitz and Stegun 26.7.1, 26.5.27)."""
    return 0.5 * _incomplete_beta(freedom / (freedom + value * value), freedom / 2, 0.5)


def t_quantile(share: float, freedom: float) -> float:
    """The value that Student's t is below with probability `share`, above one half, to nine digits."""
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > 1 - share:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 1 - share else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8), from the front (Lentz)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        # There the fraction of the complement is the one whose terms shrink.
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    fraction, above, below = 1.0, 1.0, 0.0
    for place in range(1, _MOST_TERMS):
        half = place // 2
        sign = half * (b - half) if place % 2 == 0 else -(a + half) * (a + b + half)
        term = sign * x / ((a + place - 1) * (a + place))
        below = 1 / _away(1 + term * below)
        above = _away(1 + term / above)
        fraction *= above * below
        if abs(above * below - 1) < _PRECISION:
            break
    return front / fraction


def _away(value: float) -> float:
    """From zero, by which it would be divided."""
    return value if abs(value) > 1e-300 else 1e-300


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    if min(values) == max(values):
        return 0.0  # which the mean's rounding would hide
    middle = _mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)
