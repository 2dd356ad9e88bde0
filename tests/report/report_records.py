"""Records with round figures, for tables that can be checked by eye."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferometer.bench.record import Record, throughput, work
from inferometer.bench.statistics import Summary

UNSET: dict[str, Any] = dict.fromkeys(("temperature", "top_k", "top_p", "typical_p", "repetition_penalty"))
UNSET |= {"do_sample": False, "watermark": False}


def made(
    prefill: Sequence[float] = (),
    token: Sequence[float] = (),
    *,
    batch_size: int = 1,
    decode_length: int | None = 8,
    forward: Sequence[float] = (),
    total: Sequence[float] = (),
    **changes: Any,
) -> Record:
    """A record of these samples in milliseconds; one without any is a failure, whose status and evidence `changes` gives."""
    steps = 0 if decode_length is None else decode_length - 1
    times: dict[str, Summary | None] = {}
    if prefill:
        times["prefill_ms"] = times["total_ms"] = Summary.of(prefill)
    if token:
        times["decode_token_ms"] = Summary.of(token)
        times["decode_total_ms"] = Summary.of([steps * t for t in token])
        times["total_ms"] = Summary.of([p + steps * t for p, t in zip(prefill, token, strict=True)])
    if total:
        times["total_ms"] = Summary.of(total)
    if forward:
        times["forward_ms"] = Summary.of(forward)
    counted = {name: times.get(name) for name in ("prefill_ms", "decode_total_ms", "total_ms", "forward_ms")}
    values: dict[str, Any] = {
        "case_id": "0" * 16,
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "model": "bigscience/bloomz-7b1-mt",
        "weights": "auto",
        "backend": "native",
        "stack_version": "1.0",
        "device": None,
        "device_name": "a GPU",
        "gpus": 1,
        "dtype": "float16",
        "batch_size": batch_size,
        "sequence_length": 1024,
        "decode_length": decode_length,
        "forward_only": decode_length is None,
        "sampling": UNSET,
        "runs": len(prefill or total or forward) or 10,
        "warmups": 1,
        "status": "ok",
        "throughput": throughput(work(batch_size=batch_size, sequence_length=1024, steps=steps, **counted)),
    }
    return Record(**{**values, **times, **changes})
