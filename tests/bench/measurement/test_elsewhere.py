"""A backend under a Python of its own: here this one, by another name."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from runner_sweep import Count

from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.measurement.benchmark import benchmark
from inferometer.bench.measurement.elsewhere import request_of
from inferometer.bench.records.record import Record
from inferometer.errors import UserError
from tiny_models import tiny_model


def python(tmp_path: Path, body: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def request(tmp_path: Path, **changes: Any) -> BenchRequest:
    values: dict[str, Any] = {
        "model": str(tiny_model(tmp_path, "opt")), "weights": "dummy", "dtype": "fp32", "device": "cpu", "batch_sizes": (1, 2), "runs": 2,
        "backends": ("native",), "sequence_length": 9, "decode_length": 4,
    }  # fmt: skip
    return BenchRequest(**{**values, **changes})


def test_the_records_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROMETER_PYTHON_NATIVE", python(tmp_path, f'echo noise; exec {sys.executable} "$@"'))
    emitted: list[Record] = []
    progress = Count()
    records = benchmark(request(tmp_path), emitted.append, progress)
    assert emitted == records
    assert [(r.backend, r.batch_size, r.status) for r in records] == [("native", 1, "ok"), ("native", 2, "ok")]
    assert progress.total == progress.done == 6


def test_what_the_user_can_put_right_comes_back_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROMETER_PYTHON_NATIVE", python(tmp_path, f'exec {sys.executable} "$@"'))
    with pytest.raises(UserError, match="--sequence-length 61"):
        benchmark(request(tmp_path, sequence_length=61), lambda record: None)
    with pytest.raises(UserError, match="run it by itself, or in a study"):
        benchmark(request(tmp_path, backends=("native", "hf")), lambda record: None)


def test_a_python_that_dies_or_does_not_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROMETER_PYTHON_NATIVE", python(tmp_path, "exit 7"))
    with pytest.raises(RuntimeError, match="exit code 7 after 0 records"):
        benchmark(request(tmp_path), lambda record: None)
    monkeypatch.setenv("INFEROMETER_PYTHON_NATIVE", "/no/such/python")
    with pytest.raises(UserError, match="/no/such/python of INFEROMETER_PYTHON_NATIVE does not run"):
        benchmark(request(tmp_path), lambda record: None)


def test_a_request_survives_the_way(tmp_path: Path) -> None:

    asked = request(tmp_path, decode_only=True, contexts=(4, 9), top_k=3)
    assert request_of(json.loads(json.dumps(asdict(asked)))) == asked
