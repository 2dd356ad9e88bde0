"""Plots of estimates: one estimate's ops under the roof or by their time, and what happens as one thing about it changes."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.estimate.bound import op_bound
from inferometer.estimate.estimate import Estimate, Phase, PhaseEstimate
from inferometer.estimate.limits import Limits
from inferometer.report.plots.kinds import OpMark, Series, bars, breakdown, roofline, sweep

NAMES: Mapping[Phase, str] = {"forward_ms": "forward", "prefill_ms": "prefill", "decode_token_ms": "decode (token)"}


def marks(phase: PhaseEstimate, limits: Limits) -> tuple[OpMark, ...]:
    """The ops of a phase, each with all its runs together."""
    found = []
    for each in phase.cost.ops:
        _, least = op_bound(each.op, limits)
        count = each.op.count
        found.append(
            OpMark(
                name=each.op.name,
                ms=each.seconds(phase.cost.clock) * 1e3,
                bound_ms=count * least * 1e3,
                flops=count * each.op.flops,
                bytes=count * each.op.bytes_moved,
                binds=each.binds,
            )
        )
    return tuple(found)


def roofline_of(found: Estimate) -> str:
    """The ops of every phase (of decode, a step's) under the device's roof."""
    phases = {NAMES[name]: marks(each, found.limits) for name, each in found.phases.items()}
    rate = found.limits.matmul_flop_s(found.request.formats.dtype)
    title = f"{_what(found)}: roofline, {found.limits.basis} limits"
    return roofline(title, phases, flop_s=rate, bytes_s=found.limits.memory_bytes_s)


def breakdown_of(found: Estimate) -> str:
    """Each phase's time by op. What the host link brings runs beside all of them and is no part of their sum: the heading has it."""

    def heading(name: Phase, phase: PhaseEstimate) -> str:
        stream = phase.cost.stream_ms
        return NAMES[name] + (f", beside {stream:.3g} ms of the host link" if stream else "")

    phases = {heading(name, each): marks(each, found.limits) for name, each in found.phases.items()}
    return breakdown(f"{_what(found)}: time by op", phases)


def sweep_of(varied: str, unit: str, found: Mapping[int, Estimate]) -> str:
    """Every phase's time and its bound over what was varied: {value: the estimate with it}. Raises ValueError for none."""
    if not found:
        raise ValueError("a sweep needs at least one estimate")
    first = next(iter(found.values()))
    series = []
    for phase in first.phases:
        points = {value: each for value, each in found.items() if phase in each.phases}
        times = tuple((float(value), each.phases[phase].cost.ms) for value, each in points.items())
        series.append(Series(name=NAMES[phase], points=times, interval=tuple(each.interval[phase] for each in points.values())))
        least = tuple((float(value), each.phases[phase].bound.ms) for value, each in points.items())
        series.append(Series(name=f"{NAMES[phase]}, bound", points=least))
    return sweep(f"{_what(first, without=varied)}: what if the {varied} changes", f"{varied} ({unit})", "time (ms)", series)


def cards_of(found: Mapping[str, Estimate]) -> str:
    """The last phase's time on each device, fastest first, those without enough memory named so. Raises ValueError for none."""
    if not found:
        raise ValueError("a comparison needs at least one device")
    first = next(iter(found.values()))
    phase = list(first.phases)[-1]
    ordered = sorted(found.items(), key=lambda item: item[1].phases[phase].cost.ms)
    values = {
        slug if each.fits else f"{slug} (too small)": (each.phases[phase].cost.ms, each.phases[phase].bound.ms) for slug, each in ordered
    }
    note = "pale: expected; dark: the least that the device needs"
    return bars(f"{_what(first, without='device')}: {NAMES[phase]} on each card", f"{NAMES[phase]} (ms)", values, note=note)


def _what(found: Estimate, *, without: str = "") -> str:
    asked = found.request
    shards = asked.formats.shards
    words = [asked.spec.name]
    if without != "device":
        words.append(f"on {'' if shards == 1 else f'{shards} x '}{asked.device.slug}")
    if without != "batch":
        words.append(f"batch {asked.workload.batch}")
    if without != "context":
        words.append(f"{asked.workload.length} tokens")
    return ", ".join(words).replace(", on ", " on ", 1)
