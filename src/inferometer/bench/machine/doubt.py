"""What is said of measured figures that another run may not find again: how far their repeats lie apart, or that there are too few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import quantiles
from types import MappingProxyType
from typing import Final

WIDE: Final = 1.25
"""Between the quartiles of a figure's repeats, beyond which it is told. Undisturbed ones lie within a few percent; others on the machine
take turns with the measurement, and then its median is of how the turns fell."""

DOUBTFUL: Final = "doubtful"
"""How the note begins."""


def between_quartiles(repeats: Sequence[float]) -> float | None:
    """The upper quartile over the lower, so that single outliers do not count; None for fewer than two repeats, which say nothing."""
    if len(repeats) < 2:
        return None
    lower, _, upper = quantiles(repeats, n=4, method="inclusive")
    return upper / lower


def doubtful(figures: Mapping[str, Sequence[float]], known: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """One line that names the figures that cannot be trusted, with the remedy; None where all can.

    figures: the seconds of each one's repeats. known: what is wrong with some of them whatever their repeats say.
    """
    told = []
    for name, repeats in figures.items():
        ratio = between_quartiles(repeats)
        if name in known:
            told.append(f"{name} ({known[name]})")
        elif ratio is None:
            told.append(f"{name} (measured once)")
        elif ratio > WIDE:
            told.append(f"{name} (the middle half of {len(repeats)} repeats spans a factor of {ratio:.3g})")
    if not told:
        return None
    return f"{DOUBTFUL}: {', '.join(told)}; another run may say otherwise: calibrate on a quiet machine, or with a longer --seconds"
