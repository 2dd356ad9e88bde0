"""A small chart of an HTML page: lines and marks in the columns' colours, labelled at their ends, exact values when pointed at.

Colours come from the page's style, so that a column has one colour in all charts. The marks of a column stand in one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from inferometer.report.markup.html import escaped
from inferometer.report.plots.svg import Axis, Panel, number, px

COLOURS = 8
WIDTH = 420.0
_LEFT, _BOTTOM, _TOP = 50.0, 42.0, 28.0
_HEIGHT = 196.0
_ROW = 14.0
# Pixels that a character takes at most, on average, in the font of the charts.
_CHARACTER = 6.6
_LONGEST = 18
_MOST_TICKS, _MOST_HINTS = 40, 24
# Of a line with more points, not every one has a mark.
MOST_MARKS = 120

Shape = Literal["dot", "ring", "square"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A mark: what it says when pointed at, after its line's name, and, where known, the ends of its spread or interval."""

    x: float
    y: float
    hint: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A column's points, in the order in which a line joins them (if it does). `faint` is a limit or an expectation: a dashed line."""

    colour: int
    name: str
    points: tuple[Point, ...]
    joined: bool = True
    faint: bool = False
    shape: Shape = "dot"
    labelled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A case without a value, marked at its place on the horizontal axis; word: oom, timeout, error."""

    colour: int
    name: str
    x: float
    word: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A limit through the whole chart that is no column's, such as a roof."""

    hint: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What one chart shows. ticks: values that the horizontal axis names, those of its own choice if there are none.

    diagonal: the line on which both axes are equal.
    """

    title: str
    across: Axis
    up: Axis
    lines: tuple[Line, ...]
    failures: tuple[Failure, ...] = ()
    ticks: tuple[float, ...] = ()
    curves: tuple[Curve, ...] = ()
    diagonal: bool = False

    def svg(self) -> str:
        """The image, to stand within a page."""
        rows = list(dict.fromkeys(failure.colour for failure in self.failures))
        strip = _ROW * len(rows)
        named = [line for line in self.lines if line.labelled and line.points]
        names = told_apart([line.name for line in named])
        right = 12.0 + max((_CHARACTER * min(len(name), _LONGEST) for name in names), default=0.0)
        panel = Panel(left=_LEFT, top=_TOP + strip, width=WIDTH - _LEFT - right, height=_HEIGHT, across=self.across, up=self.up)
        height = panel.top + panel.height + _BOTTOM
        parts = [*frame(panel, self.ticks), *self._ground(panel)]
        parts += [_failed(panel, self.failures, colour, place) for place, colour in enumerate(rows)]
        parts += [_line(panel, line) for line in sorted(self.lines, key=lambda line: not line.faint)]
        parts += _ends(panel, dict(zip(names, named, strict=True)))
        return image(self.title, height, parts)

    def _ground(self, panel: Panel) -> list[str]:
        parts = []
        if self.diagonal:
            low, high = max(self.across.low, self.up.low), min(self.across.high, self.up.high)
            if low < high:
                parts.append(path([(panel.x(low), panel.y(low)), (panel.x(high), panel.y(high))], "roof"))
        return parts + [path([(panel.x(x), panel.y(y)) for x, y in curve.points], "roof", hint=curve.hint) for curve in self.curves]


def image(title: str, height: float, parts: Iterable[str]) -> str:
    """An image of the common width, to stand within a page."""
    head = f'<svg viewBox="0 0 {px(WIDTH)} {px(height)}" role=img aria-label="{escaped(title)}">'
    return f"{head}{''.join(parts)}</svg>"


def frame(panel: Panel, ticks: Sequence[float] = (), *, names: Sequence[str] = ()) -> list[str]:
    """Grid, tick labels and axis labels. The vertical axis is named above it, where it is read first.

    names: of categories, which take the place of the horizontal axis's numbers at `ticks`.
    """
    bottom, right = panel.top + panel.height, panel.left + panel.width
    heights = [(panel.y(tick), tick) for tick in panel.up.ticks()]
    places = [(panel.x(tick), names[place] if names else number(tick)) for place, tick in enumerate(ticks or panel.across.ticks())]
    shown, edge = [], -math.inf
    for x, said in places:
        half = _CHARACTER * len(said) / 2
        if x - half > edge + 7:
            shown.append((x, said))
            edge = x + half
    # Ticks between the named ones, unless they are so many that they would be a bar.
    ticked = places if len(places) <= _MOST_TICKS else shown
    upper = "".join(f"<text x={px(panel.left - 6)} y={px(y + 4)}>{number(tick)}</text>" for y, tick in heights)
    lower = "".join(f"<text x={px(x)} y={px(bottom + 16)}>{escaped(said)}</text>" for x, said in shown)
    return [
        f'<path class=grid d="{"".join(f"M{px(panel.left)} {px(y)}H{px(right)}" for y, _ in heights)}"/>',
        f'<path class=axis d="M{px(panel.left)} {px(bottom)}H{px(right)}{"".join(f"M{px(x)} {px(bottom)}v4" for x, _ in ticked)}"/>',
        f"<g class=q text-anchor=end>{upper}</g><g class=q text-anchor=middle>{lower}</g>",
        words(panel.left + panel.width / 2, bottom + 34, panel.across.label, anchor="middle"),
        words(2, 14, panel.up.label),
    ]


def path(points: Sequence[tuple[float, float]], kind: str, *, hint: str = "") -> str:
    """A line through points, of a class of the page's style."""
    steps = "L".join(f"{px(x)} {px(y)}" for x, y in points)
    return f'<path class={kind} d="M{steps}">{titled(hint)}</path>' if hint else f'<path class={kind} d="M{steps}"/>'


def words(x: float, y: float, said: str, *, anchor: str = "", kind: str = "") -> str:
    """A line of text whose baseline is at y."""
    attributes = (f" class={kind}" if kind else "") + (f" text-anchor={anchor}" if anchor else "")
    return f"<text x={px(x)} y={px(y)}{attributes}>{escaped(said)}</text>"


def rectangle(x: float, y: float, width: float, height: float, *, kind: str, hint: str) -> str:
    """A filled rectangle of a class of the page's style."""
    size = f"width={px(max(width, 0.0))} height={px(max(height, 0.0))}"
    return f"<rect class={kind} x={px(x)} y={px(y)} {size}>{titled(hint)}</rect>"


def titled(hint: str) -> str:
    """What an element says when it is pointed at."""
    return f"<title>{escaped(hint)}</title>"


def colour_class(colour: int) -> str:
    """The class of a column's colour; from the ninth column on marks are hollow."""
    return f"c{colour % COLOURS}" + (" more" if colour >= COLOURS else "")


def shortened(name: str) -> str:
    """At most as many characters as fit beside a chart."""
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "\u2026"


def _line(panel: Panel, line: Line) -> str:
    at = [(panel.x(point.x), panel.y(point.y)) for point in line.points]
    if line.faint:
        # Marks of its own would hide the measured ones: the line says it all.
        said = "; ".join(point.hint for point in line.points[:_MOST_HINTS])
        return grouped(line.colour, line.name, path(at, "l", hint=said), kind="faint") if len(at) > 1 else ""
    parts = [path(at, "l")] if line.joined and len(at) > 1 else []
    for (x, _), point in zip(at, line.points, strict=True):
        if point.low is not None and point.high is not None:
            parts.append(path([(x, panel.y(point.low)), (x, panel.y(point.high))], "w"))
    every = 1 + len(at) // MOST_MARKS if line.joined else 1
    for place, ((x, y), point) in enumerate(zip(at, line.points, strict=True)):
        if place % every == 0 or place == len(at) - 1:
            parts.append(_mark(x, y, line.shape, point.hint))
    return grouped(line.colour, line.name, "".join(parts))


def grouped(colour: int, name: str, content: str, *, kind: str = "") -> str:
    """Marks of one column; a page's script says the name before the hint of each."""
    return f'<g class="{colour_class(colour)}{" " + kind if kind else ""}" data-name="{escaped(name)}">{content}</g>'


def _mark(x: float, y: float, shape: Shape, hint: str) -> str:
    if shape == "square":
        return f"<rect class=d x={px(x - 3.2)} y={px(y - 3.2)} width=6.4 height=6.4>{titled(hint)}</rect>"
    kind = " class=o" if shape == "ring" else ""
    return f"<circle{kind} cx={px(x)} cy={px(y)} r=3.4>{titled(hint)}</circle>"


def _failed(panel: Panel, failures: Sequence[Failure], colour: int, place: int) -> str:
    """One row above the panel: a cross a failed case of a column, and before the first of those alike the word, where there is room."""
    mine = sorted((failure for failure in failures if failure.colour == colour), key=lambda failure: failure.x)
    y = panel.top - 8 - _ROW * place
    parts, taken, word = [], panel.left - 20, ""
    for failure in mine:
        x, needed = panel.x(failure.x), _CHARACTER * len(failure.word) + 14
        if failure.word != word and x - needed > taken:
            parts.append(words(x - 8, y + 4, failure.word, anchor="end", kind="n"))
        parts.append(f'<path class=x d="M{px(x - 3.5)} {px(y - 3.5)}l7 7m0-7l-7 7">{titled(failure.hint)}</path>')
        taken, word = x, failure.word
    return grouped(colour, mine[0].name, "".join(parts))


def told_apart(names: Sequence[str]) -> list[str]:
    """Names without what they all end in: of columns on one device of several, the device."""
    endings = {name.rpartition(", ")[2] for name in names if ", " in name}
    if len(endings) != 1 or len(set(names)) != len(names) or not all(", " in name for name in names):
        return list(names)
    return [name.rpartition(", ")[0] for name in names]


def _ends(panel: Panel, lines: Mapping[str, Line]) -> list[str]:
    """Names at the right, each as near to its line's last mark as the others let it; none where there are too many for the height."""
    if not lines or len(lines) * _ROW > panel.height + _ROW:
        return []
    edge = panel.left + panel.width
    wanted = sorted(((panel.y(line.points[-1].y), name, line) for name, line in lines.items()), key=lambda each: each[0])
    heights = spread([y for y, _, _ in wanted], gap=_ROW, low=panel.top + 4, high=panel.top + panel.height)
    parts = []
    for (y, name, line), height in zip(wanted, heights, strict=True):
        x = panel.x(line.points[-1].x)
        lead = path([(x + 5, y), (edge, y)], "lead") if edge - x > 12 else ""
        named = words(edge + 6, height + 4, shortened(name), kind="n")
        parts.append(f'<g class="{colour_class(line.colour)}">{lead}{named}</g>')
    return parts


def spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Ascending heights moved as little as it takes to stand `gap` apart between `low` and `high`, if there is room for all."""
    found: list[float] = []
    for height in wanted:
        found.append(max(height, found[-1] + gap if found else low))
    ceiling = high
    for place in range(len(found) - 1, -1, -1):
        found[place] = max(low, min(found[place], ceiling))
        ceiling = found[place] - gap
    return found


def scale(label: str, values: Iterable[float], *, log: bool | None = None) -> Axis:
    """An axis with room for all values; logarithmic where they are positive and far apart, unless told. Raises ValueError for none."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        raise ValueError("an axis needs a value to span")
    low, high = min(known), max(known)
    if (log is None and low > 0 and high > 8 * low) or log:
        return Axis(label=label, low=low / 1.25, high=high * 1.25, log=True)
    return Axis(label=label, low=min(0.0, low), high=high * 1.08 if high > 0 else 1.0)


def steps(label: str, values: Iterable[float]) -> Axis:
    """An axis for settings such as batch sizes, which are mostly powers of two: logarithmic, with a little room at its ends.

    Raises ValueError for none.
    """
    known = sorted(set(values))
    if not known:
        raise ValueError("an axis needs a value to span")
    room = max(1.15, (known[-1] / known[0]) ** 0.04)
    return Axis(label=label, low=known[0] / room, high=known[-1] * room, log=True)
