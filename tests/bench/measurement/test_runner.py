"""None"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
import torch
from fake_backend import Clock, FakeBackend
from runner_sweep import sweep

from inferometer.bench.backends.backend import PageUse
from inferometer.bench.measurement.effort import Effort
from inferometer.bench.prediction.outlook import Outlook
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Predicted
from inferometer.hardware.reading import Reading
from inferometer.hardware.telemetry import Snapshot, Telemetry


def test_times_are_those_of_the_clock_and_the_warm_up_is_not_counted() -> None:
    clock = Clock()
    backend = FakeBackend(clock=clock, prefill_s=[9.0, 0.5, 0.25, 1.0], decode_s=[9.0, 9.0, 9.0, 9.0] + [0.1] * 12)
    (record,) = sweep({"native": backend}, batch_sizes=(2,), clock=clock)
    assert record.status == "ok"
    assert record.prefill_ms is not None
    assert record.prefill_ms.samples == (500, 250, 1000)
    assert record.prefill_ms.p50 == 500
    assert record.decode_token_ms is not None
    assert record.decode_token_ms.samples == pytest.approx((100, 100, 100))
    assert record.decode_total_ms is not None
    assert record.decode_total_ms.samples == pytest.approx((400, 400, 400))
    assert record.throughput.prefill_first_tok_s == pytest.approx((2 / 0.5 + 2 / 0.25 + 2 / 1.0) / 3)
    assert record.throughput.decode_tok_s == pytest.approx(2 * 4 / 0.4)


def test_backends_take_turns_run_by_run() -> None:
    clock, journal = Clock(), []
    backends = {name: FakeBackend(name, clock=clock, journal=journal) for name in ("native", "hf")}
    sweep(backends, batch_sizes=(1,), clock=clock)
    prefills = [name for name, what in journal if what == "prefill"]
    assert prefills == ["native", "hf"] * 4


def test_the_device_is_waited_for_at_both_ends_of_prefill_and_decode() -> None:
    clock, journal = Clock(), []
    sweep({"native": FakeBackend(clock=clock, journal=journal)}, batch_sizes=(1,), runs=1, warmups=0, clock=clock)
    assert [what for _, what in journal] == ["synchronise", "prefill", "synchronise", "synchronise"]


def test_decode_length_one_has_no_decode() -> None:
    clock = Clock()
    (record,) = sweep({"native": FakeBackend(clock=clock)}, batch_sizes=(2,), clock=clock, decode_length=1)
    assert record.status == "ok"
    assert record.decode_token_ms is record.decode_total_ms is record.throughput.decode_tok_s is None
    assert record.throughput.total_tok_s == pytest.approx(2 / 0.5)


@pytest.mark.parametrize("loss", [False, True])
def test_forward_only(loss: bool) -> None:
    clock = Clock()
    (record,) = sweep({"native": FakeBackend(clock=clock)}, batch_sizes=(2,), clock=clock, decode_length=None, loss=loss)
    assert record.status == "ok"
    assert record.forward_ms is not None
    assert record.forward_ms.samples == (500, 500, 500)
    assert record.prefill_ms is record.total_ms is None
    assert record.throughput.forward_tok_s == pytest.approx(12 / 0.5)
    assert record.checked is not None
    assert ("loss" in record.checked.method) == loss


def test_the_check_stays_within_the_models_positions() -> None:
    longest = []

    class Watched(FakeBackend):
        def logits(self, prompts: Any, *, last_only: bool) -> torch.Tensor:
            longest.append(max(len(row) for row in prompts))
            return super().logits(prompts, last_only=last_only)

    clock = Clock()
    (record,) = sweep({"native": Watched(clock=clock)}, batch_sizes=(1,), clock=clock, decode_length=None, context_limit=6)
    assert record.status == "ok"
    assert max(longest) == 6


def test_records_of_one_question_have_one_id() -> None:
    clock = Clock()
    first = sweep({"native": FakeBackend(clock=clock)}, clock=clock)
    again = sweep({"native": FakeBackend(clock=clock)}, clock=clock, runs=2)
    assert [r.case_id for r in first] == [r.case_id for r in again]
    assert len({r.case_id for r in first}) == 2


def test_an_effort_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="runs"):
        Effort(0, 1)


def test_the_environment_names_no_folder_and_no_host() -> None:
    import json
    import platform
    from pathlib import Path

    clock = Clock()
    (record,) = sweep({"native": FakeBackend(clock=clock)}, batch_sizes=(1,), clock=clock)
    text = json.dumps(record.to_json())
    assert str(Path.home()) not in text
    assert platform.node() not in text or not platform.node()
    assert record.environment["torch"] == torch.__version__
    assert record.environment["cores"] >= 1
    assert record.environment["driver"] is None  # no GPU
    assert record.environment["sensors"]["host_load"]["unit"] == "threads"


def test_sensors_are_read_when_the_last_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks that fell back while the case was prepared, or others that came meanwhile, are of its times."""
    clock = Clock()
    read = Telemetry.read
    monkeypatch.setattr(
        Telemetry, "read", lambda self: Snapshot(0.0, MappingProxyType({**read(self).readings, "host_load": Reading(clock(), "threads")}))
    )
    backend = FakeBackend(clock=clock, prefill_s=[9.0, 0.5, 0.25, 1.0])
    (record,) = sweep({"native": backend}, batch_sizes=(2,), clock=clock)
    assert record.environment["sensors"]["host_load"]["value"] == clock() > 9


def test_a_batch_whose_prefill_and_decode_share_sweeps_has_a_time_for_the_whole() -> None:
    clock, journal = Clock(), []
    backend = FakeBackend(clock=clock, prefill_s=[9.0, 0.5, 0.25, 1.0], phased=False, journal=journal)
    (record,) = sweep({"native": backend}, batch_sizes=(2,), clock=clock, admission="diagonal", group_size=1)
    assert record.status == "ok"
    assert record.total_ms is not None
    assert record.total_ms.samples == pytest.approx((1500, 1250, 2000))  # and four steps of 250
    assert record.prefill_ms is record.decode_token_ms is record.decode_total_ms is None
    assert record.throughput.total_tok_s == pytest.approx((10 / 1.5 + 10 / 1.25 + 10 / 2) / 3)
    assert record.throughput.prefill_first_tok_s is record.throughput.decode_tok_s is None
    assert (record.admission, record.group_size, record.num_groups) == ("diagonal", 1, None)
    one_run = ["synchronise", "generate", "prefill", "synchronise"]
    assert [what for _, what in journal] == one_run * 4
    assert record.energy is not None
    assert record.energy["prefill_j"] is record.energy["decode_j"] is None


def test_the_most_pages_of_the_measured_runs_are_recorded() -> None:
    clock = Clock()
    used = [PageUse(pages=20, peak=peak, page_size=16, page_bytes=100) for peak in (19, 7, 12, 9)]
    backends = {"native": FakeBackend(clock=clock, pages=used), "hf": FakeBackend("hf", clock=clock)}
    native, hf = sweep(backends, batch_sizes=(1,), clock=clock)
    assert (native.pages_peak, native.page_size) == (12, 16)  # the warm-up's 19 is none of them
    assert (hf.pages_peak, hf.page_size) == (None, None)


@pytest.mark.parametrize(
    ("phased", "admission", "whole"),
    [(True, None, False), (True, "zigzag", False), (False, "zigzag", True), (False, "diagonal", True)],
)
def test_a_batch_that_shares_sweeps_has_the_outlook_of_its_whole(phased: bool, admission: str | None, whole: bool) -> None:
    def outlook_of(case: Case) -> Outlook:
        return Outlook(predicted=Predicted(prefill_ms=3.0, peak_memory_bytes=7), total_ms=(50.0, (40.0, 60.0)))

    clock = Clock()
    (record,) = sweep(
        {"native": FakeBackend(clock=clock, phased=phased)},
        batch_sizes=(1,), clock=clock, admission=admission, outlook_of=outlook_of,
    )  # fmt: skip
    assert record.status == "ok"
    assert record.predicted is not None
    assert record.predicted.peak_memory_bytes == 7
    assert (record.predicted.prefill_ms, record.predicted.total_ms) == ((None, 50.0) if whole else (3.0, None))


def test_a_batch_is_checked_as_it_is_timed() -> None:
    """All its rows decode side by side; a forward alone needs no cache for them all."""
    together: list[int] = []

    class Watched(FakeBackend):
        def continuation(self, prompts: Any, steps: int) -> Any:
            together.append(len(prompts))
            return super().continuation(prompts, steps)

    clock = Clock()
    sweep({"native": Watched(clock=clock)}, batch_sizes=(9,), clock=clock)
    sweep({"native": Watched(clock=clock)}, batch_sizes=(9,), clock=clock, decode_length=None)
    assert together == [9, 4]
