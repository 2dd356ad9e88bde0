"""The roofline: every case's phases by what they compute a byte and the rate that they reach, under what their device can."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.bench.records.record import Record
from inferometer.estimate.limits import Limits
from inferometer.report.markup.html import table
from inferometer.report.page.chart import Chart, Curve, Line, Point, scale
from inferometer.report.page.section import Detail, Section, figure, figures
from inferometer.report.plots.svg import Axis, number
from inferometer.report.records.columns import SHORT, Columns, Sweep, length
from inferometer.report.records.outlooks import TIMED, Outlooks, Phase
from inferometer.report.records.phases import DECODE, FORWARD, PREFILL

_NAMES = {names.time: names for names in (DECODE, PREFILL, FORWARD)}
_SLUG, _TITLE = "roofline", "Under the roofline"


def roofline_section(sweeps: Sequence[Sweep], columns: Columns, outlooks: Outlooks, detail: Detail) -> Section:
    """A chart for each device and type of numbers, which decide the roof."""
    measured = [record for sweep in sweeps for record in sweep.records if record.status == "ok"]
    placed = [record for record in measured if any(_spot(record, phase, outlooks) for phase in TIMED)]
    if not placed:
        reason = f"the work of no case is known: {outlooks.why()}" if measured else "no case was measured"
        return Section(slug=_SLUG, title=_TITLE, missing=f"{reason}.")
    groups: dict[tuple[str | None, str], list[Record]] = {}
    for record in placed:
        groups.setdefault((record.device_name or record.device, record.dtype), []).append(record)
    charts = [_chart(device or "unknown device", dtype, sweeps, each, columns, outlooks) for (device, dtype), each in groups.items()]
    about = (
        "The roof is what the device can: memory bandwidth to the left of its ridge, arithmetic to the right. A dot is a decode step, "
        "its line goes through the batch sizes of one workload; a square is a prefill or a forward. The distance to the roof is what is "
        "left."
    )
    folded = detail.folded("As a table", lambda: _table(placed, columns, outlooks))
    return Section(slug=_SLUG, title=_TITLE, about=about, content=figures(charts) + folded)


def _spot(record: Record, phase: Phase, outlooks: Outlooks) -> tuple[float, float] | None:
    """FLOPs a byte, and FLOP/s reached in the median run."""
    summary, work = getattr(record, phase), outlooks.work(record, phase)
    return None if summary is None or not summary.p50 or work is None else (work.intensity, work.flops / summary.p50 * 1e3)


def _chart(device: str, dtype: str, sweeps: Sequence[Sweep], records: Sequence[Record], columns: Columns, outlooks: Outlooks) -> str:
    chosen = {id(record) for record in records}
    lines: list[Line] = []
    for sweep in sweeps:
        for name, each in sweep.columns.items():
            mine = [record for record in each if id(record) in chosen]
            for phase in TIMED:
                points = [_point(record, phase, outlooks) for record in mine]
                kept = tuple(point for point in points if point is not None)
                if kept:
                    lines.append(_line(name, phase, kept, columns, first=not any(line.name == name and line.labelled for line in lines)))
    xs = [point.x for line in lines for point in line.points]
    ys = [point.y for line in lines for point in line.points]
    known = next((record for record in records if outlooks.knows(record)), None)
    estimate = None if known is None else outlooks.get(known)
    curves: tuple[Curve, ...] = ()
    if estimate is None:
        across, up = scale("FLOP/byte", xs, log=True), scale("FLOP/s", ys, log=True)
        note = "the limits of this processor are not known here"
    else:
        across, up, curves, note = _roof(estimate.limits, dtype, xs, ys)
    chart = Chart(title=f"Roofline of {device}, {dtype}", across=across, up=up, lines=tuple(lines), curves=curves)
    return figure(f"{device}, {SHORT.get(dtype, dtype)}", chart.svg(), note=note)


def _roof(limits: Limits, dtype: str, xs: Sequence[float], ys: Sequence[float]) -> tuple[Axis, Axis, tuple[Curve, ...], str]:
    flop_s, bytes_s = limits.matmul_flop_s(dtype), limits.memory_bytes_s
    ridge = flop_s / bytes_s
    across = scale("FLOP/byte", [*xs, ridge / 4, ridge * 4], log=True)
    # As much of the slope as shows that it is one, even where every case is far to the right.
    up = scale("FLOP/s", [*ys, flop_s, flop_s / 30], log=True)
    corners = sorted({max(across.low, up.low / bytes_s), ridge, across.high})
    hint = f"{_amount(bytes_s)}B/s, then {_amount(flop_s)}FLOP/s ({limits.basis})"
    roof = (Curve(hint=hint, points=tuple((x, min(flop_s, bytes_s * x)) for x in corners)),)
    return across, up, roof, f"{_amount(bytes_s)}B/s, {_amount(flop_s)}FLOP/s, {limits.basis}"


def _line(name: str, phase: Phase, points: tuple[Point, ...], columns: Columns, *, first: bool) -> Line:
    decode = phase == "decode_token_ms"
    return Line(
        colour=columns.names.index(name),
        name=name,
        points=points,
        joined=decode,
        shape="dot" if decode else "square",
        labelled=first,
    )


def _point(record: Record, phase: Phase, outlooks: Outlooks) -> Point | None:
    spot = _spot(record, phase, outlooks)
    if spot is None:
        return None
    share = _NAMES[phase].share_of_bound(record)
    reached = "" if share is None else f", {100 * share:.0f} % of the bound"
    what = f"{_NAMES[phase].name.lower()}, batch {record.batch_size}"
    return Point(x=spot[0], y=spot[1], hint=f"{what}: {_amount(spot[1])}FLOP/s at {spot[0]:.3g} FLOP/byte{reached}")


def _amount(value: float) -> str:
    """3.35 T, to stand before a unit."""
    said = number(value)
    return f"{said[:-1]} {said[-1]}" if said[-1].isalpha() else f"{said} "


def _table(records: Sequence[Record], columns: Columns, outlooks: Outlooks) -> str:
    header = ("Column", "Model", "Batch", "Tokens", *(f"{_NAMES[phase].name}: FLOP/s at FLOP/byte" for phase in TIMED))
    rows = []
    for record in records:
        spots = [_spot(record, phase, outlooks) for phase in TIMED]
        cells = ["-" if spot is None else f"{_amount(spot[1])}at {spot[0]:.3g}" for spot in spots]
        rows.append([columns.name(record), record.model, str(record.batch_size), length(record), *cells])
    return table(header, rows, caption="Arithmetic intensity and rate of every case")
