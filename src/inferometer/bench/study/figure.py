"""The figures that a study's tables show: what each is called, its unit, and how it follows from times, bytes and joules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from inferometer.bench.records.record import Record
from inferometer.bench.records.statistics import Summary, percentile
from inferometer.bench.study.settings import did_you_mean
from inferometer.errors import shown

Better = Literal["low", "high"]
STATISTICS = ("mean", "min", "max", "p50", "p90", "p99")
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """What one source (a run, the estimator, the hardware's bound, a publication) says of one case. Unknown is None.

    steps: decode steps, of which decode_token_ms is the mean. The other times, in milliseconds too, are of a forward alone, of all
    prompts and of the whole. j_per_token: of a generated token, or a prompt token of a forward. rates: tokens a second by the name of
    a throughput, where the source has them beside its times (a mean of rates is not the rate of a mean). binds: what limits each time, by
    the time's name. served: of requests to a server, times in milliseconds and rates a second by their names in the record's `serving`.
    """

    batch_size: int
    sequence_length: int
    decode_length: int | None
    steps: int
    forward_ms: float | None = None
    prefill_ms: float | None = None
    decode_token_ms: float | None = None
    total_ms: float | None = None
    peak_memory_bytes: float | None = None
    j_per_token: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    binds: Mapping[str, str] = field(default_factory=dict)
    served: Mapping[str, float] = field(default_factory=dict)

    @property
    def whole_ms(self) -> float | None:
        """The case from its first prompt to its last token, put together from its phases where it has no time of its own."""
        if self.decode_length is None:
            return self.forward_ms
        if self.total_ms is not None or self.prefill_ms is None:
            return self.total_ms
        if not self.steps:
            return self.prefill_ms
        return None if self.decode_token_ms is None else self.prefill_ms + self.steps * self.decode_token_ms

    def rate(self, name: str, tokens: int, ms: float | None) -> float | None:
        """Tokens a second: the source's own figure if it has one, else tokens over the time."""
        if name in self.rates:
            return self.rates[name]
        return None if not ms else tokens / ms * 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of a case. decimals: as shown by default.

    time, rate, served: the record's latency, throughput or figure of a server that it is read from or counted over, if it is of one.
    of: the figure from a source's quantities, None where they do not say.
    """

    name: str
    title: str
    unit: str
    better: Better
    decimals: int
    of: Callable[[Quantities], float | None]
    time: str | None = None
    rate: str | None = None
    served: str | None = None


def _served(name: str, title: str, unit: str = "ms", better: Better = "low", *, key: str) -> Figure:
    return Figure(name=name, title=title, unit=unit, better=better, decimals=2, of=lambda q: q.served.get(key), served=key)


def _decode_total(q: Quantities) -> float | None:
    return None if q.decode_token_ms is None else q.steps * q.decode_token_ms


def _throughput(q: Quantities) -> float | None:
    if q.decode_length is None:
        return q.rate("forward_tok_s", q.batch_size * q.sequence_length, q.forward_ms)
    return q.rate("total_tok_s", q.batch_size * q.decode_length, q.whole_ms)


def _ms_per_token(q: Quantities) -> float | None:
    """The mean time over the tokens, as every time is a mean of times; of a source that has rates alone, one over the rate."""
    tokens = q.batch_size * (q.sequence_length if q.decode_length is None else q.decode_length)
    if q.whole_ms is not None:
        return q.whole_ms / tokens
    rate = _throughput(q)
    return None if not rate else 1e3 / rate


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


_ALL = (
    Figure(name="latency", title="latency", unit="s", better="low", decimals=3, of=lambda q: _scaled(q.whole_ms, 1e3), time="whole"),
    Figure(name="total_ms", title="total time", unit="ms", better="low", decimals=2, of=lambda q: q.whole_ms, time="whole"),
    Figure(name="forward_ms", title="forward", unit="ms", better="low", decimals=2, of=lambda q: q.forward_ms, time="forward_ms"),
    Figure(name="prefill_ms", title="prefill", unit="ms", better="low", decimals=2, of=lambda q: q.prefill_ms, time="prefill_ms"),
    Figure(
        name="decode_ms",
        title="decode (token)",
        unit="ms",
        better="low",
        decimals=2,
        of=lambda q: q.decode_token_ms,
        time="decode_token_ms",
    ),
    Figure(name="decode_total_ms", title="decode (total)", unit="ms", better="low", decimals=2, of=_decode_total, time="decode_total_ms"),
    Figure(name="throughput", title="throughput", unit="tokens/s", better="high", decimals=2, of=_throughput, rate="whole"),
    Figure(
        name="decode_throughput",
        title="throughput of decode",
        unit="tokens/s",
        better="high",
        decimals=2,
        of=lambda q: q.rate("decode_tok_s", q.batch_size * q.steps, _decode_total(q)),
        rate="decode_tok_s",
    ),
    Figure(
        name="prefill_throughput",
        title="first tokens of prefill",
        unit="tokens/s",
        better="high",
        decimals=2,
        of=lambda q: q.rate("prefill_first_tok_s", q.batch_size, q.prefill_ms),
        rate="prefill_first_tok_s",
    ),
    Figure(
        name="prompt_throughput",
        title="prompt tokens of prefill",
        unit="tokens/s",
        better="high",
        decimals=2,
        of=lambda q: q.rate("prefill_prompt_tok_s", q.batch_size * q.sequence_length, q.prefill_ms),
        rate="prefill_prompt_tok_s",
    ),
    Figure(name="ms_per_token", title="time a token of the batch", unit="ms", better="low", decimals=2, of=_ms_per_token),
    Figure(name="memory", title="peak memory", unit="GiB", better="low", decimals=3, of=lambda q: _scaled(q.peak_memory_bytes, GIB)),
    Figure(name="energy", title="energy", unit="J/token", better="low", decimals=3, of=lambda q: q.j_per_token),
    _served("ttft_ms", "time to the first token", key="ttft"),
    _served("itl_ms", "time between tokens", key="itl"),
    _served("tpot_ms", "time a token after the first", key="tpot"),
    _served("e2e_ms", "end to end", key="e2e"),
    _served("requests_s", "requests", "requests/s", "high", key="requests_s"),
    _served("goodput", "requests that keep the SLO", "requests/s", "high", key="goodput"),
    _served("failed", "failed requests", "requests", key="failed"),
)
FIGURES: Mapping[str, Figure] = MappingProxyType({figure.name: figure for figure in _ALL})
_SERVED = tuple(figure.served for figure in _ALL if figure.served is not None)


def find_figure(name: str) -> Figure:
    """A figure by its name, hyphens standing for underscores. Raises ValueError that lists the names."""
    plain = name.replace("-", "_")
    found = FIGURES.get("ms_per_token" if plain == "msec_per_token" else plain)
    if found is None:
        raise ValueError(f"{shown(name)} is no figure{did_you_mean(name, FIGURES)}")
    return found


def quantities(record: Record, **known: Any) -> Quantities:
    """What a source knows of a record's case."""
    return Quantities(
        batch_size=record.batch_size,
        sequence_length=record.sequence_length,
        decode_length=record.decode_length,
        steps=record.steps,
        **known,
    )


def measured(record: Record) -> Quantities:
    """What the run gave: means over its samples, and the means of its rates."""
    rates = {name: getattr(record.throughput, name) for name in record.throughput.samples}
    served = record.serving or {}
    if served:
        rates["total_tok_s"] = served.get("output_tok_s")
    means = {name: each["mean"] if isinstance(each, Mapping) else each for name in _SERVED if (each := served.get(name)) is not None}
    return quantities(
        record,
        forward_ms=_mean(record.forward_ms),
        prefill_ms=_mean(record.prefill_ms),
        decode_token_ms=_mean(record.decode_token_ms),
        total_ms=_mean(record.total_ms),
        peak_memory_bytes=record.peak_memory_bytes.allocated if record.status == "ok" else None,
        j_per_token=(record.energy or {}).get("j_per_token") if record.status == "ok" else None,
        rates={name: rate for name, rate in rates.items() if rate is not None},
        served=means,
    )


def bounded(record: Record) -> Quantities | None:
    """The least that the hardware needs, None where its limits are not known."""
    if record.bound is None:
        return None
    return quantities(
        record,
        forward_ms=record.bound.forward_ms,
        prefill_ms=record.bound.prefill_ms,
        decode_token_ms=record.bound.decode_token_ms,
        total_ms=record.bound.total_ms,
        binds=record.bound.binds or {},
    )


def statistic(record: Record, figure: Figure, name: str) -> float | None:
    """One of STATISTICS over the runs of a record; None where the figure has no samples. The mean of rates is the mean of the runs'."""
    if name == "mean":
        return figure.of(measured(record))
    if figure.time is not None:
        summary: Summary | None = getattr(record, _whole(record, figure.time, "_ms"))
        scale = 1e3 if figure.unit == "s" else 1.0
        return None if summary is None else getattr(summary, name) / scale
    if figure.rate is not None:
        samples = sorted(record.throughput.samples.get(_whole(record, figure.rate, "_tok_s"), ()))
        if not samples:
            return None
        return samples[0] if name == "min" else samples[-1] if name == "max" else percentile(samples, int(name.removeprefix("p")))
    if figure.served is not None:
        times = (record.serving or {}).get(figure.served)
        return times.get(name) if isinstance(times, Mapping) else None
    return None


def _whole(record: Record, name: str, suffix: str) -> str:
    return ("forward" if record.forward_only else "total") + suffix if name == "whole" else name


def _mean(summary: Summary | None) -> float | None:
    return None if summary is None else summary.mean


def limit(figure: Figure, bound: Quantities) -> str | None:
    """What binds a figure at its bound: the limit of the phase that takes the most of its least time; None where that is not known."""
    phases = {"forward_ms": bound.forward_ms, "prefill_ms": bound.prefill_ms, "decode_token_ms": _decode_total(bound)}
    phases["total_ms"] = bound.total_ms
    name = figure.time or figure.rate or "whole"
    if name.startswith("decode"):
        phases = {"decode_token_ms": bound.decode_token_ms}
    elif name.startswith("prefill"):
        phases = {"prefill_ms": bound.prefill_ms}
    known = {phase: ms for phase, ms in phases.items() if ms is not None}
    return bound.binds.get(max(known, key=lambda phase: known[phase])) if known else None
