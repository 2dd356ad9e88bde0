"""Self-contained SVG images: panels with axes, marks and text that stay readable on a light and on a dark ground."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

COLOURS = 6
_FONT = 12
# Of an axis, what lies between two values that it names.
_MARK_GAP = 0.06

# Each colour in a light and a dark form; told apart without red against green.
_LIGHT = ("#1f5fa8", "#b3560f", "#2b7a62", "#8b3f8b", "#7d6a00", "#5a6470")
_DARK = ("#7db3f0", "#f0a35e", "#72c9ad", "#d89ad8", "#d9c45a", "#a9b4c0")
_TEXT = f"""\
svg {{ background: #ffffff; font: {_FONT}px system-ui, sans-serif; }}
text {{ fill: #1c2128; }} .quiet {{ fill: #59636e; }} .title {{ font-size: 15px; font-weight: 600; }}
.axis {{ stroke: #59636e; fill: none; }} .grid {{ stroke: #dfe3e8; fill: none; }} .line {{ fill: none; stroke-width: 2; }}
.band {{ fill: #59636e; fill-opacity: 0.14; }} .mark {{ stroke: #1c2128; stroke-width: 2; }}"""
_TEXT_DARK = """\
svg { background: #14181d; } text { fill: #e6eaef; } .quiet { fill: #a2acb7; } .axis { stroke: #a2acb7; } .grid { stroke: #2c333b; }
.band { fill: #a2acb7; } .mark { stroke: #e6eaef; }"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A scale from `low` to `high` with a label that names its unit. Raises ValueError for ends that span nothing or have no logarithm.

    marked: the values that it names, round ones of its own choice if there are none.
    """

    label: str
    low: float
    high: float
    log: bool = False
    marked: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"an axis runs from a lower to a higher number, not from {self.low} to {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithmic axis starts above 0, not at {self.low}")

    def share(self, value: float) -> float:
        """Where a value lies: 0 at `low`, 1 at `high`; values outside lie on the nearer end."""
        if self.log:
            place = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place))

    def marking(self, values: Iterable[float]) -> Axis:
        """The axis with those of the values named that leave each other room, from the lowest on."""
        marked: list[float] = []
        for value in sorted(set(values)):
            if not marked or self.share(value) - self.share(marked[-1]) >= _MARK_GAP:
                marked.append(value)
        return replace(self, marked=tuple(marked))

    def ticks(self) -> tuple[float, ...]:
        """The values that it names; of round ones three to about ten."""
        if self.marked:
            return self.marked
        return _log_ticks(self.low, self.high) if self.log else _even_ticks(self.low, self.high)


def spanning(label: str, values: Iterable[float], *, log: bool = False, least: float | None = None) -> Axis:
    """An axis with room for all values; a linear one starts at 0, or at `least`. Raises ValueError for no values."""
    known = list(values)
    if not known:
        raise ValueError("an axis needs a value to span")
    low, high = min(known), max(known)
    if log:
        return Axis(label=label, low=low / 1.3, high=high * 1.3, log=True)
    start = min(low, 0.0 if least is None else least)
    return Axis(label=label, low=start, high=high + 0.06 * (high - start) if high > start else start + 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A rectangle of an image, in pixels, with a horizontal and a vertical axis."""

    left: float
    top: float
    width: float
    height: float
    across: Axis
    up: Axis

    def x(self, value: float) -> float:
        """Pixels from the image's left edge."""
        return self.left + self.width * self.across.share(value)

    def y(self, value: float) -> float:
        """Pixels from the image's top edge."""
        return self.top + self.height * (1 - self.up.share(value))

    def frame(self, *, across: bool = True, up: bool = True) -> list[str]:
        """Grid lines, tick labels and axis labels; `up` False leaves the vertical axis to the caller."""
        bottom = self.top + self.height
        parts = []
        for tick in self.across.ticks() if across else ():
            parts += [line(self.x(tick), self.top, self.x(tick), bottom, "grid")]
            parts += [text(self.x(tick), bottom + 16, number(tick), anchor="middle", kind="quiet")]
        for tick in self.up.ticks() if up else ():
            parts += [line(self.left, self.y(tick), self.left + self.width, self.y(tick), "grid")]
            parts += [text(self.left - 6, self.y(tick) + 4, number(tick), anchor="end", kind="quiet")]
        parts += [line(self.left, self.top, self.left, bottom, "axis"), line(self.left, bottom, self.left + self.width, bottom, "axis")]
        parts += [text(self.left + self.width / 2, bottom + 34, self.across.label, anchor="middle")]
        if up:
            parts.append(turned(self.left - 50, self.top + self.height / 2, self.up.label))
        return parts


def page(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """The image. `title` stands at its top and is its accessible name."""
    light = "\n".join(_colour(index, shade) for index, shade in enumerate(_LIGHT))
    dark = "\n".join(_colour(index, shade) for index, shade in enumerate(_DARK))
    style = f"<style>\n{_TEXT}\n{light}\n@media (prefers-color-scheme: dark) {{\n{_TEXT_DARK}\n{dark}\n}}\n</style>"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{px(width)}" height="{px(height)}" viewBox="0 0 {px(width)} {px(height)}" '
        f'role="img" aria-label="{_attribute(title)}">'
    )
    return "\n".join([head, style, text(16, 26, title, kind="title"), *parts, "</svg>"]) + "\n"


def within(image: str) -> str:
    """An image of `page` for an HTML document that has a style for its classes: without its own, which a strict policy refuses."""
    before, _, rest = image.partition("<style>")
    return before.rstrip("\n") + rest.partition("</style>")[2]


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line of a class."""
    return f'<line class="{kind}" x1="{px(x1)}" y1="{px(y1)}" x2="{px(x2)}" y2="{px(y2)}"/>'


def path(points: Sequence[tuple[float, float]], colour: int, *, hint: str = "") -> str:
    """A line through points in one of the colours."""
    steps = " ".join(f"{px(x)},{px(y)}" for x, y in points)
    return f'<polyline class="line s{colour % COLOURS}" points="{steps}">{_hint(hint)}</polyline>'


def dot(x: float, y: float, radius: float, colour: int, *, hint: str = "", hollow: bool = False) -> str:
    """A disc, or a ring if hollow; `hint` shows when pointed at."""
    kind = f'class="s{colour % COLOURS}" fill="none"' if hollow else f'class="f{colour % COLOURS}" fill-opacity="0.75"'
    return f'<circle {kind} cx="{px(x)}" cy="{px(y)}" r="{px(radius)}">{_hint(hint)}</circle>'


def bar(x: float, y: float, width: float, height: float, colour: int, *, hint: str = "", pale: bool = False) -> str:
    """A filled rectangle."""
    shade = "0.4" if pale else "0.9"
    size = f'width="{px(max(width, 0))}" height="{px(height)}"'
    return f'<rect class="f{colour % COLOURS}" fill-opacity="{shade}" x="{px(x)}" y="{px(y)}" {size}>{_hint(hint)}</rect>'


def band(x: float, y: float, width: float, height: float) -> str:
    """A pale ground behind marks."""
    return f'<rect class="band" x="{px(x)}" y="{px(y)}" width="{px(max(width, 0))}" height="{px(height)}"/>'


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    """A line of text whose baseline is at y."""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{px(x)}" y="{px(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def turned(x: float, y: float, words: str) -> str:
    """Text from below to above, centred."""
    return f'<text transform="translate({px(x)} {px(y)}) rotate(-90)" text-anchor="middle">{escape(words)}</text>'


def number(value: float) -> str:
    """Few digits: 1, 2.5, 1500, 2M."""
    for size, suffix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.4g}{suffix}"
    return f"{value:.4g}"


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    decades = math.log10(high / low)
    if decades < 1.5:
        steps: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    else:
        steps = (1.0, 2.0, 5.0) if decades < 3 else (1.0,)
    every = max(1, math.ceil(decades / 8))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = tuple(v for power in powers if power % every == 0 for step in steps if low <= (v := _round(step * 10.0**power)) <= high)
    # An axis of less than a factor of two has hardly a round number in a logarithmic row.
    return found if len(found) >= 3 else _even_ticks(low, high)


def _even_ticks(low: float, high: float) -> tuple[float, ...]:
    rough = (high - low) / 6
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * (1 - 1e-9))
    found = (_round(index * step) for index in range(math.floor(low / step), math.ceil(high / step) + 1))
    return tuple(dict.fromkeys(value for value in found if low <= value <= high))


def _round(value: float) -> float:
    """Without the dust of a product with a power of ten."""
    return float(f"{value:.12g}")


def _colour(index: int, shade: str) -> str:
    return f".f{index} {{ fill: {shade}; }} .s{index} {{ stroke: {shade}; }}"


def _hint(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""


def _attribute(words: str) -> str:
    return escape(words, {'"': "&quot;"})


def px(value: float) -> str:
    """A coordinate; a tenth of a pixel is exact enough."""
    return f"{value:.1f}".removesuffix(".0")
