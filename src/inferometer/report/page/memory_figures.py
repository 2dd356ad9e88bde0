"""Where a device's memory goes at each batch size: what the estimator counts, what was measured, and what the device has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from inferometer.bench.records.record import Record
from inferometer.estimate.memory import Memory
from inferometer.report.markup.html import escaped, table
from inferometer.report.page.chart import WIDTH, frame, grouped, image, path, rectangle, scale, titled, words
from inferometer.report.page.section import Detail, Section, figure, figures
from inferometer.report.plots.svg import Axis, Panel, px
from inferometer.report.records.columns import Columns, Sweep, length
from inferometer.report.records.outlooks import Outlooks

_SLUG, _TITLE = "memory", "Memory"
_GIB = float(1 << 30)
# From the bottom; the classes are shades of the column's colour.
_USES: Final = ("weights", "KV cache", "activations or logits", "outside tensors")
# Of what a device has: less is not seen beside it.
_LITTLE = 0.04
_MOST_CHARTS, _MOST_BARS = 18, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bars:
    """The bars of one chart: the records of one column, told apart by `label` along an axis."""

    column: str
    axis: str
    labels: tuple[str, ...]
    records: tuple[Record, ...]


def memory_section(sweeps: Sequence[Sweep], columns: Columns, outlooks: Outlooks, detail: Detail) -> Section:
    """A chart for each column of each workload, a bar a batch size; workloads of one batch size each share theirs."""
    groups = {title: each for title, each in _groups(sweeps, outlooks).items() if each}
    every = [bars for each in groups.values() for bars in each]
    if not every:
        return Section(slug=_SLUG, title=_TITLE, missing=f"no case's memory can be divided by use: {outlooks.why()}.")
    # Those that tell most, in the order of the page.
    kept = sorted(every, key=lambda bars: -len(bars.records))[:_MOST_CHARTS]
    parts = []
    for title, each in groups.items():
        charts = [_chart(title, bars, columns, outlooks) for bars in each if bars in kept]
        if charts:
            parts.append(f"<h3>{escaped(title)}</h3>{figures(charts)}")
            parts.append(detail.folded("Memory as a table", partial(_table, title, each, outlooks)))
    if len(every) > len(kept):
        parts.append(f"<p class=about>{len(every) - len(kept)} more charts are left out; the table of all cases has every peak.</p>")
    keys = "".join(f"<li><span class=u{place}></span>{use}" for place, use in enumerate(_USES))
    about = (
        "Bars are what the estimator counts on one device. The heavy line is the measured peak of tensors, to be compared with the bar "
        "without what lies outside tensors; a dotted outline is a case that failed. The dashed line is what the device has."
    )
    return Section(slug=_SLUG, title=_TITLE, about=about, content=f"<ul class=key>{keys}</ul>{''.join(parts)}")


def _groups(sweeps: Sequence[Sweep], outlooks: Outlooks) -> dict[str, list[_Bars]]:
    """Charts by their heading."""
    groups: dict[str, list[_Bars]] = {}
    single: dict[tuple[str, int], dict[str, list[Record]]] = {}
    for sweep in sweeps:
        if len(sweep.batches) == 1:
            for name, records in sweep.columns.items():
                single.setdefault((records[0].model, records[0].batch_size), {}).setdefault(name, []).extend(records)
            continue
        groups[sweep.name] = [
            _Bars(column=name, axis="batch size", labels=tuple(str(record.batch_size) for record in kept), records=tuple(kept))
            for name, records in sweep.columns.items()
            if (kept := _told(records, outlooks))
        ]
    for (model, batch), of in single.items():
        groups[f"{model}, batch {batch}"] = [
            _Bars(column=name, axis="tokens (prompt + new)", labels=tuple(length(record) for record in kept), records=tuple(kept))
            for name, records in of.items()
            if (kept := _told(sorted(records, key=lambda r: (r.sequence_length, r.decode_length or 0)), outlooks))
        ]
    return groups


def _told(records: Sequence[Record], outlooks: Outlooks) -> list[Record]:
    known = [record for record in records if outlooks.get(record) is not None]
    if len(known) <= _MOST_BARS:
        return known
    # As many as fit, the smallest and the largest among them.
    return [known[round(place * (len(known) - 1) / (_MOST_BARS - 1))] for place in range(_MOST_BARS)]


def parts_of(memory: Memory) -> tuple[int, int, int, int]:
    """Bytes by use, in the order of the bars."""
    outside = memory.context + memory.communication
    return (memory.weights + memory.rounding, memory.kv, max(memory.activations, memory.logits) + memory.workspace, outside)


def _chart(title: str, bars: _Bars, columns: Columns, outlooks: Outlooks) -> str:
    records = bars.records
    memories = [_memory(record, outlooks) for record in records]
    capacity = max((size for record in records if (size := outlooks.capacity_bytes(record)) is not None), default=None)
    peaks = [record.peak_memory_bytes.allocated or 0 for record in records]
    needed = max(*(memory.device_bytes for memory in memories), *peaks)
    # A case far beyond what the device has would press all others flat, and so would a device that has far more than all of them.
    roomy = capacity is not None and needed < _LITTLE * capacity
    reach = needed if roomy or capacity is None else min(max(needed, capacity), 1.6 * capacity)
    up = scale("GiB", [reach / _GIB], log=False)
    across = Axis(label=bars.axis, low=0, high=len(records))
    panel = Panel(left=50, top=30, width=WIDTH - 62, height=210, across=across, up=up)
    centres = tuple(place + 0.5 for place in range(len(records)))
    parts = frame(panel, centres, names=bars.labels)
    drawn = [_bar(panel, place, bars, memory) for place, memory in enumerate(memories)]
    parts.append(grouped(columns.names.index(bars.column), bars.column, "".join([*drawn, *_words(panel, records, memories)])))
    where = records[0].device or records[0].device_name or "unknown device"
    if capacity is not None and roomy:
        beyond = f"{capacity / _GIB:.1f} GiB, {capacity / needed:.0f} times as much, is above"
        parts.append(words(panel.left + 4, panel.top + 12, beyond, kind="q"))
    elif capacity is not None:
        y, has = panel.y(capacity / _GIB), f"{capacity / _GIB:.1f} GiB"
        parts.append(path([(panel.left, y), (panel.left + panel.width, y)], "roof", hint=f"{where} has {has}"))
        parts.append(words(panel.left + 4, y - 5, has, kind="q"))
    image_of = image(f"Memory of {bars.column} by {bars.axis}: {title}", panel.top + panel.height + 42, parts)
    return figure(bars.column, image_of, note=where if capacity is not None else f"{where}; what it has is not known here")


def _bar(panel: Panel, place: int, bars: _Bars, memory: Memory) -> str:
    record, said = bars.records[place], f"{bars.axis} {bars.labels[place]}"
    width = min(44.0, 0.72 * panel.width / panel.across.high)
    left = panel.x(place + 0.5) - width / 2
    parts, below = [], 0
    for use, size in enumerate(parts_of(memory)):
        top = panel.y((below + size) / _GIB)
        hint = f"{said}: {_USES[use]} {size / _GIB:.2f} of {memory.device_bytes / _GIB:.2f} GiB expected"
        if size:
            parts.append(rectangle(left, top, width, panel.y(below / _GIB) - top, kind=f"u{use}", hint=hint))
        below += size
    peak = record.peak_memory_bytes.allocated
    if peak is not None:
        y = panel.y(peak / _GIB)
        hint = f"{said}: measured peak of tensors {peak / _GIB:.2f} GiB ({memory.peak_bytes / _GIB:.2f} expected)"
        parts.append(path([(left - 3, y), (left + width + 3, y)], "peak", hint=hint))
    if record.status not in ("ok", "skipped"):
        top = panel.y(below / _GIB)
        outline = f"M{px(left)} {px(panel.y(0))}V{px(top)}H{px(left + width)}V{px(panel.y(0))}"
        # What is larger than the chart points out of it.
        beyond = f"M{px(left + width / 2 - 4)} {px(top + 8)}l4-5 4 5" if below / _GIB > panel.up.high else ""
        parts.append(f'<path class=lost d="{outline}{beyond}">{titled(f"{said}: {record.status}")}</path>')
    return "".join(parts)


def _words(panel: Panel, records: Sequence[Record], memories: Sequence[Memory]) -> list[str]:
    """The status of each case that failed, above its bar, where it meets no other."""
    parts: list[str] = []
    taken = -math.inf, math.inf
    for place, (record, memory) in enumerate(zip(records, memories, strict=True)):
        if record.status in ("ok", "skipped"):
            continue
        # A longer word stands above the neighbours' lines.
        y = max(panel.y(memory.device_bytes / _GIB) - (5 if len(record.status) == 3 else 14), panel.top - 4)
        x, half = panel.x(place + 0.5), 4.0 * len(record.status)
        if x - half > taken[0] or abs(y - taken[1]) > 13:
            parts.append(words(x, y, record.status, anchor="middle", kind="n"))
            taken = x + half, y
    return parts


def _memory(record: Record, outlooks: Outlooks) -> Memory:
    found = outlooks.get(record)
    assert found is not None, "only records with an estimate are drawn"
    return found.memory


def _table(title: str, charts: Sequence[_Bars], outlooks: Outlooks) -> str:
    header = ("Column", charts[0].axis.capitalize(), *(f"{use} (GiB)" for use in _USES))
    rows = []
    for bars in charts:
        for label, record in zip(bars.labels, bars.records, strict=True):
            memory = _memory(record, outlooks)
            measured = _gib(record.peak_memory_bytes.allocated) if record.status == "ok" else record.status
            sizes = [_gib(size) for size in (*parts_of(memory), memory.peak_bytes)]
            rows.append([bars.column, label, *sizes, measured, _gib(memory.device_bytes), _gib(outlooks.capacity_bytes(record))])
    rest = ("Tensors expected", "Tensors measured", "Device expected", "Device has")
    return table((*header, *rest), rows, caption=f"Memory by use, {title}")


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / _GIB:.2f}"
