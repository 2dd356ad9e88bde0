"""What several GPUs were measured to take, beside what the estimator says of it: within the 12 % that it is held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferometer.bench.study.folder import read_folder
from inferometer.estimate.estimate import estimate

MEASUREMENTS = Path(__file__).resolve().parents[2] / "benchmarks" / "measurements"
WITHIN = 0.12
FILES = {"tensor-parallel-h200": 2, "tensor-parallel-4-h200": 4}
STUDY = MEASUREMENTS.parents[1] / "results" / "tensor-parallel"


def rows() -> list[tuple[int, dict[str, Any]]]:
    told = [(gpus, json.loads(line)) for name, gpus in FILES.items() for line in (MEASUREMENTS / f"{name}.jsonl").read_text().splitlines()]
    return [*told, (2, prefill())]


def prefill() -> dict[str, Any]:
    """8 x 1,024 prompts, as the study of document 002 has them."""
    took = {
        record.gpus: record.prefill_ms.p50
        for record in read_folder(STUDY)[1]
        if (record.quantize, record.batch_size, record.sequence_length) == (None, 8, 1024) and record.prefill_ms is not None
    }
    return {"model": "bloomz-7b1", "phase": "prefill", "batch_size": 8, "context": 1024, "dtype": "float16", "one": took[1], "all": took[2]}


def expected_ms(row: dict[str, Any], gpus: int) -> float:
    prefills = row["phase"] == "prefill"
    found = estimate(
        row["model"],
        "h200",
        batch_size=row["batch_size"],
        sequence_length=row["context"],
        decode_length=2 if prefills else 64,
        dtype=row.get("dtype") or ("float16" if row["model"].startswith("llama") else "bfloat16"),
        tensor_parallel=gpus,
        calibration=None,
    )
    return found.phases["prefill_ms" if prefills else "decode_token_ms"].cost.ms


@pytest.mark.parametrize(
    ("gpus", "row"), [pytest.param(gpus, row, id=f"{gpus}-{row['model']}-{row['phase']}-{row['batch_size']}") for gpus, row in rows()]
)
def test_several_gpus_take_what_is_expected(gpus: int, row: dict[str, Any]) -> None:
    assert expected_ms(row, gpus) == pytest.approx(row["all"], rel=WITHIN)
    if row["one"] is not None:
        assert expected_ms(row, 1) == pytest.approx(row["one"], rel=WITHIN)


def test_there_are_rows_of_two_and_of_four() -> None:
    assert {gpus for gpus, _ in rows()} == {2, 4}
