"""Records whose books are in order, to be changed one thing at a time."""

from __future__ import annotations

from typing import Any

from inferometer.bench.records.record import Record, Throughput, throughput, work
from inferometer.bench.records.statistics import Summary


def record(
    prefill: list[float] | None = None, decode: list[float] | None = None, *, batch_size: int = 2, decode_length: int = 5, **changes: Any
) -> Record:
    prefill = prefill or [10.0, 12.0]
    decode = decode or [40.0, 44.0]
    steps = decode_length - 1
    times = {
        "prefill_ms": Summary.of(prefill),
        "decode_total_ms": Summary.of(decode) if steps else None,
        "decode_token_ms": Summary.of([d / steps for d in decode]) if steps else None,
        "total_ms": Summary.of([p + d for p, d in zip(prefill, decode, strict=True)] if steps else prefill),
    }
    counted = {name: times.get(name) for name in ("prefill_ms", "decode_total_ms", "total_ms", "forward_ms")}
    values: dict[str, Any] = {
        "case_id": "0" * 16,
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "model": "m",
        "weights": "auto",
        "backend": "native",
        "stack_version": "1",
        "device": "cpu",
        "device_name": "a processor",
        "gpus": 0,
        "dtype": "float32",
        "batch_size": batch_size,
        "sequence_length": 7,
        "decode_length": decode_length,
        "runs": len(prefill),
        "warmups": 1,
        "status": "ok",
        "throughput": throughput(work(batch_size=batch_size, sequence_length=7, steps=steps, **counted)),
        **times,
    }
    return Record(**{**values, **changes})


def failed(status: str, evidence: str = "RuntimeError: it broke", **changes: Any) -> Record:
    absent = dict.fromkeys(("prefill_ms", "decode_total_ms", "decode_token_ms", "total_ms"))
    return record(**{**absent, "throughput": Throughput(), "status": status, "evidence": evidence, **changes})
