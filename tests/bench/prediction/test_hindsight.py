"""Records judged after the fact: which figures are compared, and why others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from example_records import failed, record

from inferometer.bench.prediction.hindsight import review
from inferometer.bench.records.record import PeakMemory, Predicted


@pytest.fixture(autouse=True)
def _no_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))


def _known(**changes: Any):  # type: ignore[no-untyped-def]
    return record(**{"model": "opt-1.3b", "device": "h100-sxm", "gpus": 1, "dtype": "bfloat16", **changes})


def test_every_measured_figure_is_compared() -> None:
    predicted = Predicted(prefill_ms=20.0, decode_token_ms=1.0)
    known = _known(predicted=predicted, peak_memory_bytes=PeakMemory(allocated=3 << 30), energy={"j_per_token": 0.5})
    found = review([known])
    assert not found.skipped
    assert [each.figure for each in found.figures] == ["prefill_ms", "decode_token_ms", "peak_memory_bytes", "j_per_token"]
    assert all(each.now for each in found.figures)
    prefill = found.figures[0]
    assert (prefill.measured, prefill.then) == (10.0, 20.0)  # the median is the lower of two
    deviation = found.deviation("prefill_ms")
    assert deviation is not None
    assert prefill.now is not None
    assert deviation.mean == pytest.approx(abs(prefill.now / 10.0 - 1))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "no/such-model"}, "no/such-model is no preset and not here"),
        ({"device": None, "device_name": "Unheard-of GPU"}, "the catalogue has no Unheard-of GPU"),
        ({"admission": "zigzag", "group_size": 2, "num_groups": 1}, "admission zigzag"),
        ({"backend": "other"}, "no stack is known for backend other"),
    ],
)
def test_what_cannot_be_estimated_says_why_and_keeps_the_old_prediction(changes: dict[str, Any], reason: str) -> None:
    found = review([_known(predicted=Predicted(prefill_ms=20.0), **changes)])
    assert reason in found.skipped["0" * 16]
    assert [(each.now, each.then) for each in found.figures if each.figure == "prefill_ms"] == [(None, 20.0)]
    assert found.deviation("prefill_ms") is None


def test_cases_that_failed_are_left_out() -> None:
    found = review([failed("oom")])
    assert found.figures == ()
    assert found.skipped == {}
