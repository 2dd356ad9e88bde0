"""Whether a record agrees with itself: its status with its evidence, its times with its kind, each figure with those it follows from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from inferometer.bench.records.statistics import Summary, mean
from inferometer.errors import shown

if TYPE_CHECKING:
    from inferometer.bench.records.record import Record

# Division and multiplication back may each be off by half a unit in the last place; anything near this is an error of arithmetic.
_RELATIVE = 1e-9


def check_time(name: str, value: str) -> None:
    """Raises ValueError unless `value` is a time in ISO 8601, as reports sort and group by it."""
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a time in ISO 8601, as 2026-11-29T06:19:00+00:00, not {shown(value)}") from None


def check(record: Record, times: Sequence[Summary | None]) -> None:
    """Raises ValueError for the first thing that does not agree. times: all that the record has a place for."""
    if record.status != "ok":
        if not record.evidence:
            raise ValueError(f"status {record.status} needs evidence")
        if any(t is not None for t in times):
            raise ValueError(f"a case with status {record.status} has no times to show")
        return
    if record.evidence is not None or (record.checked is not None and not record.checked.passed):
        raise ValueError("an ok case has no evidence of a failure and no failed check")
    if any(t is not None and len(t.samples) != record.runs for t in times):
        raise ValueError(f"each time has one sample for each of the {record.runs} runs")
    _check_first_tokens(record)
    if record.serving is not None:
        _check_serving(record, record.serving)
    elif record.forward_only:
        _check_forward(record)
    elif record.decode_only:
        _check_decode_only(record)
    else:
        _check_generation(record)
    _check_throughput(record)


def _check_forward(record: Record) -> None:
    others = (record.prefill_ms, record.decode_token_ms, record.decode_total_ms, record.total_ms)
    if record.forward_ms is None or any(t is not None for t in others):
        raise ValueError("a forward-only case has forward_ms and no other time")


def _check_decode_only(record: Record) -> None:
    if any(t is not None for t in (record.prefill_ms, record.total_ms, record.forward_ms)):
        raise ValueError("a case without a prefill has decode times and no others")
    if record.decode_total_ms is None or record.decode_token_ms is None:
        raise ValueError("a case without a prefill has decode_total_ms and decode_token_ms")
    _check_steps(record, record.decode_total_ms, record.decode_token_ms)


def _check_serving(record: Record, serving: Mapping[str, Any]) -> None:
    times = (record.prefill_ms, record.decode_token_ms, record.decode_total_ms, record.total_ms, record.forward_ms)
    if any(t is not None for t in times):
        raise ValueError("a served case has the times of its requests and no others")
    served, failed = serving.get("served"), serving.get("failed")
    if not isinstance(served, int) or not isinstance(failed, int) or served < 1 or failed < 0 or served + failed != record.requests:
        raise ValueError(f"served {served} and failed {failed} are not the {record.requests} requests")
    for name in ("ttft", "tpot", "e2e", "itl"):
        if serving.get(name) is not None and serving[name].get("samples") is not None:
            Summary.from_json(serving[name])
    if serving.get("output_tok_s") is not None:
        tokens = served * serving["output_tokens"]["mean"]
        if not math.isclose(serving["output_tok_s"] * serving["duration_s"], tokens, rel_tol=_RELATIVE):
            raise ValueError(f"serving.output_tok_s {serving['output_tok_s']} x {serving['duration_s']} s is not {tokens} tokens")


def _check_generation(record: Record) -> None:
    if record.admission is not None and record.prefill_ms is None:
        if record.total_ms is None or any(t is not None for t in (record.decode_total_ms, record.decode_token_ms, record.forward_ms)):
            raise ValueError("a case whose prefill and decode share sweeps has total_ms and no other time")
        return
    if record.prefill_ms is None or record.total_ms is None or record.forward_ms is not None:
        raise ValueError("a generating case has prefill_ms and total_ms, and no forward_ms")
    if (record.decode_total_ms is None) != (record.steps == 0) or (record.decode_token_ms is None) != (record.steps == 0):
        raise ValueError(f"decode times go with decode steps, of which there are {record.steps}")
    decode = (0.0,) * record.runs
    if record.decode_total_ms is not None and record.decode_token_ms is not None:
        decode = record.decode_total_ms.samples
        _check_steps(record, record.decode_total_ms, record.decode_token_ms)
    for run, (whole, prefill, rest) in enumerate(zip(record.total_ms.samples, record.prefill_ms.samples, decode, strict=True)):
        if not math.isclose(whole, prefill + rest, rel_tol=_RELATIVE):
            raise ValueError(f"run {run}: total_ms {whole} is not prefill {prefill} and decode {rest}")


def _check_first_tokens(record: Record) -> None:
    if (record.first_tokens_ms is None) != (record.first_tokens is None):
        raise ValueError("first_tokens and first_tokens_ms go together")
    if record.first_tokens_ms is None or record.first_tokens is None:
        return
    if record.total_ms is None or record.prefill_ms is not None:
        raise ValueError("first_tokens_ms is part of a total whose prefill and decode share sweeps")
    tokens = record.batch_size * (record.steps + 1)
    if not record.batch_size <= record.first_tokens <= tokens:
        raise ValueError(f"first_tokens {record.first_tokens} is not from {record.batch_size} to {tokens}")
    for run, (part, whole) in enumerate(zip(record.first_tokens_ms.samples, record.total_ms.samples, strict=True)):
        if part > whole:
            raise ValueError(f"run {run}: first_tokens_ms {part} is more than total_ms {whole}")


def _check_steps(record: Record, totals: Summary, tokens: Summary) -> None:
    for run, (total, token) in enumerate(zip(totals.samples, tokens.samples, strict=True)):
        if not math.isclose(total, record.steps * token, rel_tol=_RELATIVE):
            raise ValueError(f"run {run}: decode_total_ms {total} is not {record.steps} steps of {token}")


def _check_throughput(record: Record) -> None:
    for name, (tokens, latency) in record.work.items():
        samples = record.throughput.samples.get(name, ())
        figure = getattr(record.throughput, name)
        if latency is None:
            if samples or figure is not None:
                raise ValueError(f"throughput.{name} has no time that it could come from")
            continue
        if figure is None or len(samples) != len(latency.samples):
            raise ValueError(f"throughput.{name} needs a rate for each run")
        for run, (rate, ms) in enumerate(zip(samples, latency.samples, strict=True)):
            if not math.isclose(rate * ms / 1000.0, tokens, rel_tol=_RELATIVE):
                raise ValueError(f"run {run}: throughput.{name} {rate} x {ms} ms is not {tokens} tokens")
        if not math.isclose(figure, mean(samples), rel_tol=_RELATIVE):
            raise ValueError(f"throughput.{name} {figure} is not the mean of the runs' rates, {mean(samples)}")
