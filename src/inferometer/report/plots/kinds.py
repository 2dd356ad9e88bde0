"""The estimator's plots, each one SVG image: errors by regime, ops under the roofline, time by op, and what-if sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferometer.estimate.validation import OURS, Report
from inferometer.report.plots.svg import COLOURS, Axis, Panel, band, bar, dot, line, number, page, path, spanning, text

# Ratios further from 1 than this are drawn at the edge.
_FARTHEST = 4.0
_NEAREST = 1.5
# Ops that take less than this share of the time are drawn without their names.
_NAMED = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class OpMark:
    """An op of a step as plots show it: expected and least milliseconds of all its `count` runs, FLOPs and compulsory bytes."""

    name: str
    ms: float
    bound_ms: float
    flops: float
    bytes: float
    binds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of a sweep: (x, y) points in order of x, with the ends (low, high) of each y's interval if they are known."""

    name: str
    points: tuple[tuple[float, float], ...]
    interval: tuple[tuple[float, float], ...] = ()


def error_scatter(reports: Sequence[Report]) -> str:
    """Predicted over measured, a line of dots a regime: filled where held out, hollow where fitted or shown apart; the band is the gate.

    Raises ValueError where nothing has a prediction.
    """
    shown = [report for report in reports if any(OURS in each.predictions for each in report.scored)]
    if not shown:
        raise ValueError("there is no prediction to draw")
    ratios = [each.predictions[OURS] / each.row.value for report in shown for each in report.scored if OURS in each.predictions]
    reach = min(_FARTHEST, max(_NEAREST, max(ratios), 1 / min(ratios)))
    across = Axis(label="predicted / measured (ratio; 1 is exact)", low=1 / reach, high=reach, log=True)
    panel = Panel(left=190, top=48, width=640, height=26.0 * len(shown), across=across, up=Axis(label="", low=0, high=len(shown)))
    parts = panel.frame(up=False)
    for place, report in enumerate(shown):
        middle = panel.top + 26 * (place + 0.5)
        parts.append(text(panel.left - 8, middle + 4, report.regime.name, anchor="end"))
        if report.regime.gate is not None:
            left, right = panel.x(1 - report.regime.gate), panel.x(1 + report.regime.gate)
            parts.append(band(left, middle - 11, right - left, 22))
        for index, each in enumerate(report.scored):
            if OURS not in each.predictions:
                continue
            ratio = each.predictions[OURS] / each.row.value
            hint = f"{each.row.id}: measured {each.row.value:g}, predicted {each.predictions[OURS]:.4g} ({100 * (ratio - 1):+.1f} %)"
            # Dots of one regime stand a little apart, so that they do not hide each other.
            parts.append(dot(panel.x(ratio), middle + 3.0 * (index % 5 - 2), 3, place, hint=hint, hollow=not each.held_out))
    parts.append(line(panel.x(1), panel.top, panel.x(1), panel.top + panel.height, "mark"))
    note = "filled: held out; hollow: fitted or shown apart; band: the gate on the mean error"
    parts.append(text(panel.left, panel.top + panel.height + 54, note, kind="quiet"))
    return page(860, panel.top + panel.height + 70, "Predicted over measured, by regime", parts)


def roofline(title: str, phases: Mapping[str, Sequence[OpMark]], *, flop_s: float, bytes_s: float) -> str:
    """Ops under the roof of a device, a colour a phase: FLOPs a byte against FLOP/s reached, each as large as its part of its phase.

    flop_s: the roof's flat part, the rate of the type that the products are in. Raises ValueError for no op that computes anything.
    """
    drawn = {phase: [op for op in ops if op.flops and op.bytes and op.ms] for phase, ops in phases.items()}
    every = [op for ops in drawn.values() for op in ops]
    if not every:
        raise ValueError("no op here computes anything and moves anything")
    ridge = flop_s / bytes_s
    across = spanning("arithmetic intensity (FLOP/byte)", [*(op.flops / op.bytes for op in every), ridge / 4, ridge * 4], log=True)
    up = spanning("rate (FLOP/s)", [*(op.flops / op.ms * 1e3 for op in every), flop_s], log=True)
    panel = Panel(left=80, top=48, width=660, height=400, across=across, up=up)
    roof = [(x, min(flop_s, bytes_s * x)) for x in (across.low, max(across.low, up.low / bytes_s), ridge, across.high)]
    parts = [*panel.frame(), path([(panel.x(x), panel.y(y)) for x, y in roof], 5, hint="the least time")]
    parts.append(text(panel.x(across.high) - 4, panel.y(flop_s) - 6, f"{number(flop_s)}FLOP/s", anchor="end", kind="quiet"))
    parts.append(text(panel.x(ridge) + 4, panel.y(flop_s) + 16, f"{number(bytes_s)}B/s up to here", kind="quiet"))
    taken: list[tuple[float, float]] = []
    for colour, (phase, ops) in enumerate(drawn.items()):
        whole = sum(op.ms for op in phases[phase])
        for op in sorted(ops, key=lambda op: -op.ms):
            x, y, share = panel.x(op.flops / op.bytes), panel.y(op.flops / op.ms * 1e3), op.ms / whole
            hint = f"{phase}, {op.name}: {op.ms:.3g} ms ({100 * share:.0f} %), bound {op.bound_ms:.3g} ms, {op.binds}"
            parts.append(dot(x, y, 3 + 14 * share**0.5, colour, hint=hint))
            if share >= _NAMED:
                at = _free(x, y + 4, taken)
                taken.append((x, at))
                right = x > panel.left + 0.7 * panel.width
                words = f"{op.name} {100 * share:.0f} %"
                parts.append(text(x - 14 if right else x + 14, at, words, anchor="end" if right else "start"))
    parts += _legend([f"{phase}, each op as large as its part of it" for phase in drawn], panel.left, panel.top + panel.height + 54)
    return page(780, panel.top + panel.height + 74, title, parts)


def breakdown(title: str, phases: Mapping[str, Sequence[OpMark]]) -> str:
    """Time by op, a group of bars a phase: expected in full length, the bound's part darker. Raises ValueError for no time at all."""
    listed = {phase: sorted((op for op in ops if op.ms), key=lambda op: -op.ms) for phase, ops in phases.items()}
    listed = {phase: ops for phase, ops in listed.items() if ops}
    if not listed:
        raise ValueError("there is no time to divide")
    parts: list[str] = []
    top = 48.0
    for ops in listed.items():
        phase, bars = ops
        whole = sum(op.ms for op in bars)
        across = spanning(f"{phase}: time of all layers (ms)", [op.ms for op in bars])
        panel = Panel(left=200, top=top, width=520, height=22.0 * len(bars), across=across, up=Axis(label="", low=0, high=len(bars)))
        parts += panel.frame(up=False)
        for place, op in enumerate(bars):
            y = panel.top + 22 * place + 3
            hint = f"{op.name}: {op.ms:.3g} ms, bound {op.bound_ms:.3g} ms, {op.binds}"
            parts.append(text(panel.left - 8, y + 12, op.name, anchor="end"))
            parts.append(bar(panel.left, y, panel.x(op.ms) - panel.left, 16, 0, hint=hint, pale=True))
            parts.append(bar(panel.left, y, panel.x(min(op.bound_ms, op.ms)) - panel.left, 16, 0, hint=hint))
            parts.append(text(panel.x(op.ms) + 6, y + 12, f"{100 * op.ms / whole:.0f} %, {op.binds}", kind="quiet"))
        top = panel.top + panel.height + 56
    parts.append(text(200, top, "pale: expected; dark: the least that the device needs", kind="quiet"))
    return page(860, top + 18, title, parts)


def sweep(title: str, x_label: str, y_label: str, series: Sequence[Series], *, log: bool = True) -> str:
    """Lines over what is varied, with their intervals as pale ends. Raises ValueError for no points."""
    xs = [x for each in series for x, _ in each.points]
    ys = [y for each in series for _, y in each.points] + [end for each in series for ends in each.interval for end in ends]
    across = spanning(x_label, xs, log=log)
    # Batches and lengths go in doublings, which round numbers of a logarithmic axis fall between.
    across = across.marking(xs) if log else across
    up = spanning(y_label, ys, log=log and max(ys) > 10 * min(ys) > 0)
    panel = Panel(left=80, top=48, width=660, height=360, across=across, up=up)
    parts = panel.frame()
    for colour, each in enumerate(series):
        for (x, _), (low, high) in zip(each.points, each.interval, strict=False):
            parts.append(band(panel.x(x) - 2, panel.y(high), 4, panel.y(low) - panel.y(high)))
        parts.append(path([(panel.x(x), panel.y(y)) for x, y in each.points], colour))
        parts += [dot(panel.x(x), panel.y(y), 3.5, colour, hint=f"{each.name}: {x:g}, {y:.4g}") for x, y in each.points]
    parts += _legend([each.name for each in series], panel.left, panel.top + panel.height + 54)
    return page(780, panel.top + panel.height + 74, title, parts)


def bars(title: str, label: str, values: Mapping[str, tuple[float, float | None]], *, note: str = "") -> str:
    """A bar a name: (value, the bound's value or None), in the order given, as for cards. Raises ValueError for none."""
    across = spanning(label, [value for value, _ in values.values()])
    panel = Panel(left=190, top=48, width=560, height=22.0 * len(values), across=across, up=Axis(label="", low=0, high=len(values)))
    parts = panel.frame(up=False)
    for place, (name, (value, least)) in enumerate(values.items()):
        y = panel.top + 22 * place + 3
        parts.append(text(panel.left - 8, y + 12, name, anchor="end"))
        parts.append(bar(panel.left, y, panel.x(value) - panel.left, 16, 0, hint=f"{name}: {value:.4g}", pale=least is not None))
        if least is not None:
            parts.append(bar(panel.left, y, panel.x(min(least, value)) - panel.left, 16, 0, hint=f"{name}: bound {least:.4g}"))
        parts.append(text(panel.x(value) + 6, y + 12, f"{value:.3g}", kind="quiet"))
    parts.append(text(panel.left, panel.top + panel.height + 54, note, kind="quiet"))
    return page(860, panel.top + panel.height + 72, title, parts)


def _legend(names: Sequence[str], x: float, y: float) -> list[str]:
    parts = []
    for colour, name in enumerate(names):
        parts += [dot(x + 5, y - 4, 5, colour % COLOURS), text(x + 15, y, name)]
        x += 30 + 7.2 * len(name)
    return parts


def _free(x: float, y: float, taken: Sequence[tuple[float, float]]) -> float:
    """A height near y at which a label at x meets none that is there."""
    while any(abs(x - other) < 150 and abs(y - height) < 13 for other, height in taken):
        y += 13
    return y
