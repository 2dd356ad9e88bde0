"""Records with round figures, for tables that can be checked by eye, and studies of a few lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferometer.bench.records.record import Bound, PeakMemory, Predicted, Record, throughput, work
from inferometer.bench.records.statistics import Summary
from inferometer.bench.study.file import read_study
from inferometer.bench.study.study import Study

HERE = {"inferometer": "1.0", "cpu": "a processor", "session": "one"}
UNSET: dict[str, Any] = dict.fromkeys(("temperature", "top_k", "top_p", "typical_p", "repetition_penalty"))
UNSET |= {"do_sample": False, "watermark": False}


def made(
    prefill: Sequence[float] = (),
    token: Sequence[float] = (),
    *,
    batch_size: int = 1,
    sequence_length: int = 1024,
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
        "sequence_length": sequence_length,
        "decode_length": decode_length,
        "forward_only": decode_length is None,
        "sampling": UNSET,
        "runs": len(prefill or total or forward) or 10,
        "warmups": 1,
        "status": "ok",
        "throughput": throughput(work(batch_size=batch_size, sequence_length=sequence_length, steps=steps, **counted)),
    }
    return Record(**{**values, **times, **changes})


def study_of(text: str, name: str = "mine") -> Study:
    """A study from TOML without its title."""
    return read_study(f'title = "Mine"\n{text}', name, name).study()


def ran(
    column: str,
    *,
    part: str = "sweep",
    batch_size: int = 1,
    sequence_length: int = 8,
    decode_length: int | None = 5,
    memory: int | None = None,
    predicted: dict[str, Any] | None = None,
    bound: dict[str, Any] | None = None,
    **changes: Any,
) -> Record:
    """What a column of a study measured: as `made`, with two runs where no sample says how many."""
    asked = repr((part, batch_size, sequence_length, decode_length, sorted(_asked(changes))))
    values: dict[str, Any] = {
        "case_id": hashlib.sha256(asked.encode()).hexdigest()[:16],
        "model": "opt-125m",
        "weights": "dummy",
        "device": "h100-sxm",
        "device_name": "NVIDIA H100 80GB HBM3",
        "sampling": {},
        "runs": len(changes.get("prefill") or changes.get("total") or changes.get("forward") or (0, 0)),
        "study": "mine",
        "part": part,
        "column": column,
        "environment": HERE,
        "peak_memory_bytes": PeakMemory(allocated=memory),
        "predicted": None if predicted is None else Predicted(**predicted),
        "bound": None if bound is None else Bound(**bound),
    }
    return made(batch_size=batch_size, sequence_length=sequence_length, decode_length=decode_length, **{**values, **changes})


def _asked(changes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What tells cases apart, of a record's changes."""
    names = ("model", "backend", "dtype", "quantize", "tensor_parallel", "admission", "group_size", "num_groups")
    yield from ((name, str(changes[name])) for name in names if name in changes)


def answered(study: Study, **changes: Any) -> list[Record]:
    """A record for every question of a study: 10 ms for prompts or a forward, 2 ms a step, 1 GiB; groups take 100 ms in all."""
    records = []
    for cell in study.cells():
        asked = cell.settings
        forward = bool(asked.get("forward_only")) or "bert" in asked["model"]
        runs = asked.get("runs", 2)
        times: dict[str, Any] = {"prefill": [10.0] * runs, "token": [2.0] * runs}
        if forward:
            times = {"forward": [10.0] * runs}
        elif "admission" in asked:
            times = {"total": [100.0] * runs}
        kept = {
            name: asked[name]
            for name in ("model", "backend", "dtype", "quantize", "tensor_parallel", "group_size", "num_groups")
            if name in asked
        }
        kept |= {name: asked[name] for name in ("admission", "loss") if name in asked}
        record = ran(
            cell.column,
            part=cell.part,
            batch_size=asked["batch_size"],
            sequence_length=asked["sequence_length"],
            decode_length=None if forward else asked["decode_length"],
            memory=1 << 30,
            study=study.name,
            **times,
            **{**kept, **changes},
        )
        records.append(record)
    return records
