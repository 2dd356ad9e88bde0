"""A column's process from within: one model, one case at a time, step by step."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from example_records import record

from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.conduct import desk as module
from inferometer.bench.conduct.desk import Desk
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import PeakMemory
from inferometer.errors import UserError
from inferometer.model.presets import preset


@pytest.fixture(autouse=True)
def uncapped() -> Iterator[None]:
    """A desk caps the memory of its process, which here is that of all tests."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def asked(**changes: Any) -> tuple[BenchRequest, Case]:
    given: dict[str, Any] = {"model": "tiny-opt", "weights": "dummy", "dtype": "float32", "device": "cpu", "batch_sizes": (2,)}
    given |= {"sequence_length": 4, "decode_length": 3, "runs": 3, "warmups": 1}
    request = BenchRequest(**{**given, **changes})
    known = preset("tiny-opt")
    assert known is not None
    ((case,),) = request.rounds(known.spec(), dtype="float32", device="cpu", device_name="c")
    return request, case


def answer(desk: Desk, request: BenchRequest, case: Case) -> Any:
    desk.load(request, case.memory_limit)
    assert desk.begin(case) is None
    assert desk.run(warmups=1, runs=2) is None
    assert desk.run(warmups=1, runs=1) is None
    return desk.end()


def test_runs_in_blocks_make_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    request, case = asked()
    found = answer(desk, request, case)
    assert (found.status, found.case_id, found.runs) == ("ok", case.case_id, 3)
    assert len(found.total_ms.samples) == 3
    assert found.checked.passed
    loaded = desk.resident_bytes
    assert loaded > 0

    # The same model serves another workload, and another order of groups, and is not loaded again.
    def again(*_: object) -> None:
        raise AssertionError("the model is there")

    monkeypatch.setattr(module, "open_backend", again)
    assert answer(desk, *asked(batch_sizes=(3,), sequence_length=5)).batch_size == 3
    assert answer(desk, *asked(admission="diagonal", group_size=1, num_groups=2)).admission == "diagonal"
    assert answer(desk, *asked()).case_id == case.case_id
    with pytest.raises(AssertionError, match="the model is there"):
        desk.load(asked(seed=5)[0], None)
    with pytest.raises(AssertionError, match="the model is there"):
        desk.load(request, 1 << 30)


def test_what_is_dropped_is_gone() -> None:
    desk = Desk()
    desk.release()
    answer(desk, *asked())
    desk.release()
    assert desk.resident_bytes == 0
    assert answer(desk, *asked()).status == "ok"


def test_steps_out_of_turn() -> None:
    desk = Desk()
    request, case = asked()
    for step in (lambda: desk.begin(case), lambda: desk.run(warmups=0, runs=1), desk.end):
        with pytest.raises(RuntimeError, match="a case"):
            step()
    desk.load(request, None)
    with pytest.raises(RuntimeError, match="a case"):
        desk.end()


def test_what_cannot_be_done_here_is_told_before_anything_is_loaded() -> None:
    with pytest.raises(UserError, match="--sequence-length 4000"):
        Desk().load(asked(sequence_length=4000)[0], None)


def test_a_whole_device_is_no_figure_of_one_process_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sensors:
        def __init__(self, value: int | None) -> None:
            self._value = value

        def read(self) -> Sensors:
            return self

        def value(self, name: str) -> int | None:
            assert name == "gpu_process_memory_bytes"
            return self._value

    measured = record(peak_memory_bytes=PeakMemory(allocated=1, reserved=2, device=3))
    for value, device in ((None, None), (3, 3)):
        monkeypatch.setattr(module, "telemetry", lambda _, value=value: Sensors(value))
        own = module._own(measured, torch.device("cuda", 0)).peak_memory_bytes
        assert own == PeakMemory(allocated=1, reserved=2, device=device)
