"""Bars in groups: one figure of several series over the same places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferometer.report.plots.svg import Axis, Panel, bar, dot, number, page, spanning, text

_GROUP_GAP = 14.0
_LEAST_WIDTH, _MOST_WIDTH = 8.0, 34.0
_LEFT, _TOP, _HEIGHT = 80.0, 48.0, 320.0
_CHARACTER = 7.2


@dataclass(frozen=True, slots=True, kw_only=True)
class BarSeries:
    """A colour: its name and a value for each group, None where there is none. pale: not measured here."""

    name: str
    values: tuple[float | None, ...]
    pale: bool = False


def grouped_bars(title: str, x_label: str, y_label: str, groups: Sequence[str], series: Sequence[BarSeries], *, log: bool = False) -> str:
    """An image of bars; under a group its name, above a bar its value. Raises ValueError for no value, and for values without a group."""
    if any(len(each.values) != len(groups) for each in series):
        raise ValueError(f"every series needs a value, or None, for each of the {len(groups)} groups")
    known = [value for each in series for value in each.values if value is not None]
    drawn = [each for each in series if any(value is not None for value in each.values)]
    width = min(_MOST_WIDTH, max(_LEAST_WIDTH, 620.0 / max(1, len(groups)) / max(1, len(drawn))))
    step = max(width * len(drawn) + _GROUP_GAP, _CHARACTER * max((len(name) for name in groups), default=0) + 8)
    up = spanning(y_label, known, log=log and bool(known) and min(known) > 0)
    panel = Panel(
        left=_LEFT, top=_TOP, width=step * len(groups), height=_HEIGHT, across=Axis(label=x_label, low=0, high=len(groups)), up=up
    )
    parts = panel.frame(across=False)
    bottom = _TOP + _HEIGHT
    for place, group in enumerate(groups):
        middle = _LEFT + step * (place + 0.5)
        parts.append(text(middle, bottom + 16, group, anchor="middle", kind="quiet"))
        for colour, each in enumerate(drawn):
            value = each.values[place]
            if value is None:
                continue
            x, top = middle + width * (colour - len(drawn) / 2), panel.y(value)
            parts.append(bar(x + 1, top, width - 2, bottom - top, colour, hint=f"{each.name}, {group}: {value:.4g}", pale=each.pale))
            if width >= 4 * _CHARACTER:
                parts.append(text(x + width / 2, top - 4, number(float(f"{value:.3g}")), anchor="middle", kind="quiet"))
    below = bottom + 56
    for colour, each in enumerate(drawn):
        parts += [dot(_LEFT + 5, below - 4, 5, colour), text(_LEFT + 15, below, each.name)]
        below += 18
    if any(each.pale for each in drawn):
        parts.append(text(_LEFT, below, "pale: not measured here", kind="quiet"))
        below += 18
    return page(max(_LEFT + panel.width + 24, 480), below + 10, title, parts)
