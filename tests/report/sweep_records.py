"""A study's worth of records as they come from a card: three columns over batch sizes to the edge of memory, forwards, contexts."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from report_records import UNSET

from inferometer.bench.records.record import Bound, Checked, PeakMemory, Predicted, Record, Throughput, throughput, work
from inferometer.bench.records.statistics import Summary
from inferometer.estimate.estimate import estimate

ENVIRONMENT: dict[str, Any] = {
    "inferometer": "0.1.0",
    "python": "3.12.4",
    "torch": "2.13.0+cu130",
    "transformers": "5.24.0",
    "cuda": "13.0",
    "gpu": "NVIDIA H100 80GB HBM3",
    "gpu_memory_bytes": 85_520_809_984,
    "platform": "Linux-x86_64",
    "cpu": "Intel(R) Xeon(R) Platinum 8468",
    "cores": 16,
    "threads": 16,
    "sensors": {"gpu_power_w": {"value": 412.0, "unit": "W", "reason": None}},
}
NO_ENERGY = {"prefill_j": None, "decode_j": None, "j_per_token": None, "basis": "none: NVML is not there"}
# Backend, dtype, the estimator's stack for it, how much slower than expected it is.
COLUMNS = (("native", "bfloat16", "native", 1.07), ("hf", "bfloat16", "hf-eager", 0.96), ("hf", "float32", "hf-eager", 1.12))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def case(
    column: tuple[str, str, str, float] = COLUMNS[0],
    *,
    batch: int = 1,
    prompt: int = 512,
    new: int | None = 64,
    model: str = "opt-6.7b",
    runs: int = 5,
    minute: int = 0,
    energy: bool = False,
    **changes: Any,
) -> Record:
    """A record of what the estimator expects, off by the column's factor and some noise; oom where it does not fit."""
    backend, dtype, stack, factor = column
    found = estimate(
        model,
        "h100-sxm",
        batch_size=batch,
        sequence_length=prompt,
        decode_length=new,
        dtype=dtype,
        stack=stack,
        forward_only=new is None,
        calibration=None,
    )
    values: dict[str, Any] = {
        "case_id": hashlib.sha256(f"{column} {batch} {prompt} {new} {model}".encode()).hexdigest()[:16],
        "started_at": f"2026-05-04T{9 + minute // 60:02d}:{minute % 60:02d}:00.000+00:00",
        "model": model,
        "weights": "dummy",
        "backend": backend,
        "stack_version": "0.1.0" if backend == "native" else "5.24.0 sdpa",
        "device": "h100-sxm",
        "device_name": "NVIDIA H100 80GB HBM3",
        "gpus": 1,
        "dtype": dtype,
        "batch_size": batch,
        "sequence_length": prompt,
        "decode_length": new,
        "forward_only": new is None,
        "sampling": UNSET,
        "runs": runs,
        "warmups": 1,
        "energy": NO_ENERGY,
        "environment": ENVIRONMENT,
        "bound": Bound(**found.bound),
        "predicted": Predicted(**found.predicted),
    }
    if not found.fits:
        short = (found.short_by_bytes or 0) / 2**30
        evidence = f"OutOfMemoryError: CUDA out of memory. Tried to allocate {short:.2f} GiB. GPU 0 has 79.65 GiB in all."
        return Record(**{**values, "status": "oom", "evidence": evidence, "throughput": Throughput(), **changes})
    noise = random.Random(f"{column}{batch}{prompt}{new}{model}")
    samples = {
        name: tuple(expected * factor * (1 + 0.02 * noise.random()) for _ in range(runs))
        for name, expected in (
            ("forward_ms", found.forward_ms),
            ("prefill_ms", found.prefill_ms),
            ("decode_token_ms", found.decode_token_ms),
        )
        if expected is not None
    }
    steps = 0 if new is None else new - 1
    times = {name: Summary.of(each) for name, each in samples.items()}
    if new is not None:
        decode = samples.get("decode_token_ms", (0.0,) * runs)
        times["total_ms"] = Summary.of(p + steps * t for p, t in zip(samples["prefill_ms"], decode, strict=True))
        if steps:
            times["decode_total_ms"] = Summary.of(steps * t for t in decode)
    counted = {name: times.get(name) for name in ("prefill_ms", "decode_total_ms", "total_ms", "forward_ms")}
    peak = round(found.peak_memory_bytes * (1 + 0.04 * noise.random()))
    if energy and found.j_per_token:
        joules = found.j_per_token * (0.8 + 0.4 * noise.random())
        values["energy"] = {
            "prefill_j": None,
            "decode_j": joules * batch * steps,
            "j_per_token": joules,
            "basis": "the GPU's energy counter",
        }
    values |= {
        "status": "ok",
        "throughput": throughput(work(batch_size=batch, sequence_length=prompt, steps=steps, **counted)),
        "peak_memory_bytes": PeakMemory(allocated=peak, reserved=round(1.06 * peak), device=None),
        "checked": Checked(method="last-position logits against hf", max_error=2e-3, tolerance=0.02, passed=True),
        **times,
    }
    return Record(**{**values, **changes})


def sweep(columns: Sequence[tuple[str, str, str, float]] = COLUMNS, batches: Sequence[int] = BATCHES, **about: Any) -> list[Record]:
    """Every column at every batch size."""
    return [case(column, batch=batch, minute=place, **about) for place, batch in enumerate(batches) for column in columns]


def study() -> list[Record]:
    """A sweep, a forward of three batch sizes, decode at several contexts, a time-out, an error and a case that was skipped."""
    forwards = sweep(COLUMNS[:2], (4, 16, 64), prompt=1024, new=None, model="opt-1.3b")
    contexts = [
        case(column, batch=4, prompt=prompt, new=32, model="opt-6.7b") for column in COLUMNS for prompt in (128, 256, 512, 1024, 1536)
    ]
    empty = dict.fromkeys(("prefill_ms", "decode_token_ms", "decode_total_ms", "total_ms"))
    lost: dict[str, Any] = {**empty, "throughput": Throughput(), "peak_memory_bytes": PeakMemory(), "checked": None}
    stuck = case(COLUMNS[1], batch=48, status="timeout", evidence="no answer within 300 s", **lost)
    broken = case(
        COLUMNS[2], batch=24, status="error", evidence="RuntimeError: CUDA error: an illegal memory access was encountered", **lost
    )
    away = case(batch=8, backend="deepspeed", dtype="float16", status="skipped", evidence="deepspeed is not installed", **lost)
    return [*sweep(energy=True), *forwards, *contexts, stuck, broken, away]
