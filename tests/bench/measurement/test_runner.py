from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from fake_backend import VOCABULARY, Clock, FakeBackend

from inferometer.bench.backends.backend import PageUse
from inferometer.bench.backends.prompts import random_prompts
from inferometer.bench.measurement.column import Failure, Unopened
from inferometer.bench.measurement.effort import Effort
from inferometer.bench.measurement.runner import Runner
from inferometer.bench.prediction.outlook import Outlook
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Predicted, Record
from inferometer.hardware.host_memory import free_host_bytes
from inferometer.hardware.reading import Reading
from inferometer.hardware.telemetry import Snapshot, Telemetry


class Count:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def start(self, total: int) -> None:
        self.total = total

    def advance(self, count: int = 1) -> None:
        self.done += count


def sweep(
    backends: Mapping[str, FakeBackend | Unopened],
    *,
    batch_sizes: tuple[int, ...] = (1, 2),
    runs: int = 3,
    warmups: int = 1,
    clock: Clock | None = None,
    decode_length: int | None = 5,
    context_limit: int | None = None,
    progress: Count | None = None,
    prompts_for: Callable[[int, int], list[list[int]]] = lambda batch_size, length: random_prompts(0, batch_size, length, VOCABULARY),
    outlook_of: Callable[[Case], Outlook] = lambda case: Outlook(),
    **case: Any,
) -> list[Record]:
    rounds = [
        [
            Case(
                model="fake",
                backend=name,
                dtype="float32",
                device="cpu",
                batch_size=size,
                sequence_length=6,
                decode_length=decode_length,
                forward_only=decode_length is None,
                **case,
            )
            for name in backends
        ]
        for size in batch_sizes
    ]
    reference = backends.get("hf")
    runner = Runner(
        backends,
        prompts_for,
        Effort(runs, warmups),
        reference=reference if isinstance(reference, FakeBackend) else None,
        device=torch.device("cpu"),
        dtype=torch.float32,
        context_limit=context_limit,
        outlook_of=outlook_of,
        clock=clock or Clock(),
        progress=progress,
    )
    emitted: list[Record] = []
    records = runner.run(rounds, emitted.append)
    assert emitted == records
    return records


def out_of_memory_at(size: int, where: str = "prefill") -> Any:
    def fail(what: str, rows: int) -> None:
        if rows == size and what == where:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

    return fail


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


class Recording(FakeBackend):
    """Makes so many things in each of its runs, the check's not among them."""

    def __init__(self, made: list[int], **settings: Any) -> None:
        super().__init__(**settings)
        self.preparations, self._made = 0, made

    def prefill(self, prompts: Any, params: Any) -> None:
        super().prefill(prompts, params)
        self.preparations += self._made[self._runs] if self._runs < len(self._made) else 0


def test_a_run_in_which_something_was_made_is_run_again() -> None:
    """As where a size is recorded when it comes a second time: neither the first run nor the second is like those to come."""
    clock = Clock()
    backend = Recording([3, 1, 0, 2, 0], clock=clock, prefill_s=[9.0, 8.0, 0.5, 7.0, 0.25], decode_s=[0.1])
    (record,) = sweep({"native": backend}, batch_sizes=(1,), runs=2, clock=clock)
    assert record.prefill_ms is not None
    assert record.prefill_ms.samples == (500, 250)
    assert (record.runs, record.warmups) == (2, 1 + 2)


def test_without_warm_ups_the_first_run_counts_only_if_it_made_nothing() -> None:
    clock = Clock()
    backend = Recording([1], clock=clock, prefill_s=[9.0, 0.5])
    (record,) = sweep({"native": backend}, batch_sizes=(1,), runs=1, warmups=0, clock=clock)
    assert record.prefill_ms is not None
    assert (record.prefill_ms.samples, record.warmups) == ((500,), 1)


def test_a_backend_that_never_ends_making_things_is_measured_all_the_same() -> None:
    clock = Clock()
    (record,) = sweep({"native": Recording([1] * 99, clock=clock)}, batch_sizes=(1,), runs=3, clock=clock)
    assert record.status == "ok"
    assert (record.runs, record.warmups) == (3, 1 + 4)


def test_a_run_of_minutes_is_not_run_again_for_what_was_made_in_it() -> None:
    """What recording takes is nothing beside it."""
    clock = Clock()
    (record,) = sweep({"native": Recording([1] * 99, clock=clock, prefill_s=[20.0], decode_s=[1.0])}, batch_sizes=(1,), runs=2, clock=clock)
    assert (record.runs, record.warmups) == (2, 1 + 1)


def test_the_others_are_not_held_up_by_one_that_makes_things() -> None:
    clock, journal = Clock(), []
    backends = {
        "native": Recording([0, 1, 0], name="native", clock=clock, journal=journal),
        "hf": FakeBackend("hf", clock=clock, journal=journal),
    }
    native, hf = sweep(backends, batch_sizes=(1,), runs=1, clock=clock)
    assert [name for name, what in journal if what == "prefill"] == ["native", "hf", "native", "native", "hf"]
    assert (native.warmups, hf.warmups) == (2, 1)


def test_a_record_says_whether_launches_were_measured() -> None:
    clock = Clock()
    backend = FakeBackend(clock=clock)
    backend.launches = {"measured": 4, "maps": 5}  # type: ignore[attr-defined]
    (record,) = sweep({"native": backend}, batch_sizes=(1,), clock=clock)
    assert record.launches == {"measured": 4, "maps": 5}
    (other,) = sweep({"native": FakeBackend(clock=clock)}, batch_sizes=(1,), clock=clock)
    assert other.launches is None


def test_the_device_is_waited_for_at_both_ends_of_prefill_and_decode() -> None:
    clock, journal = Clock(), []
    sweep({"native": FakeBackend(clock=clock, journal=journal)}, batch_sizes=(1,), runs=1, warmups=0, clock=clock)
    assert [what for _, what in journal] == ["synchronise", "prefill", "synchronise", "synchronise"]


@pytest.mark.parametrize("where", ["prepare", "logits", "prefill", "decode"])
def test_a_batch_size_that_runs_out_of_memory_is_a_row_and_the_others_run(where: str) -> None:
    clock = Clock()
    backend = FakeBackend(clock=clock, fail=out_of_memory_at(2, where))
    records = sweep({"native": backend}, batch_sizes=(1, 2, 4), clock=clock)
    assert [r.status for r in records] == ["ok", "oom", "ok"]
    assert records[1].evidence is not None
    assert "Tried to allocate 1 GiB" in records[1].evidence
    assert backend.abandoned == 1


def test_prompts_are_made_only_for_a_batch_that_has_room() -> None:
    """Prompts of millions of rows take minutes to make; a cache that cannot hold them says so at once."""
    made: list[int] = []

    def prompts_for(batch_size: int, length: int) -> list[list[int]]:
        made.append(batch_size)
        return random_prompts(0, batch_size, length, VOCABULARY)

    clock = Clock()
    records = sweep({"native": FakeBackend(clock=clock, fail=out_of_memory_at(2, "prepare"))}, clock=clock, prompts_for=prompts_for)
    assert [r.status for r in records] == ["ok", "oom"]
    assert made == [1]


@pytest.mark.parametrize("decode_length", [None, 5])
def test_prompts_without_memory_are_a_row_of_every_backend(decode_length: int | None) -> None:
    clock = Clock()
    backends = {"native": FakeBackend(clock=clock), "hf": FakeBackend("hf", clock=clock)}
    records = sweep(backends, batch_sizes=(10**22, 1), clock=clock, decode_length=decode_length)
    assert [r.status for r in records] == ["oom", "oom", "ok", "ok"]
    assert "GiB of host memory" in str(records[0].evidence)
    assert all(backend.abandoned for backend in backends.values())


def test_a_run_on_the_cpu_that_wants_more_memory_than_is_free_fails_instead_of_being_killed() -> None:
    def fail(what: str, rows: int) -> None:
        if what == "prefill" and rows == 2:
            # The system would grant it: nothing is written to it here.
            torch.empty(2 * free_host_bytes(), dtype=torch.uint8)

    clock = Clock()
    records = sweep({"native": FakeBackend(clock=clock, fail=fail)}, batch_sizes=(1, 2, 4), clock=clock)
    assert [r.status for r in records] == ["ok", "oom", "ok"]
    assert "allocate" in str(records[1].evidence)


def test_one_backend_that_fails_leaves_the_other_alone() -> None:
    clock = Clock()
    backends = {"native": FakeBackend(clock=clock), "hf": FakeBackend("hf", clock=clock, fail=out_of_memory_at(2))}
    records = sweep(backends, clock=clock)
    assert [(r.backend, r.batch_size, r.status) for r in records] == [
        ("native", 1, "ok"), ("hf", 1, "ok"), ("native", 2, "ok"), ("hf", 2, "oom"),
    ]  # fmt: skip
    assert records[3].evidence is not None
    assert "the weights of native were on the device as well" in records[3].evidence


@pytest.mark.parametrize(("size", "where", "statuses"), [(2, "logits", ["ok", "oom"]), (0, "exact", ["ok", "ok"])])
def test_a_reference_without_memory_leaves_the_backend_to_its_own_check(size: int, where: str, statuses: list[str]) -> None:
    clock = Clock()
    backends = {"native": FakeBackend(clock=clock), "hf": FakeBackend("hf", clock=clock, fail=out_of_memory_at(size, where))}
    records = sweep(backends, batch_sizes=(2,), clock=clock)
    assert [r.status for r in records] == statuses
    assert records[0].checked is not None
    assert "against itself" in records[0].checked.method


def test_any_other_failure_is_an_error_with_its_words() -> None:
    def fail(what: str, rows: int) -> None:
        if what == "decode":
            raise ValueError("no such kernel")

    (record,) = sweep({"native": FakeBackend(fail=fail)}, batch_sizes=(1,))
    assert (record.status, record.evidence) == ("error", "ValueError: no such kernel")
    assert record.prefill_ms is None


def test_wrong_outputs_print_no_speed() -> None:
    clock = Clock()
    records = sweep({"native": FakeBackend(clock=clock, error=0.5), "hf": FakeBackend("hf", clock=clock)}, batch_sizes=(1,), clock=clock)
    assert [r.status for r in records] == ["error", "ok"]
    assert records[0].prefill_ms is None
    assert records[0].throughput.decode_tok_s is None
    assert records[0].checked is not None
    assert not records[0].checked.passed
    assert records[0].evidence is not None
    assert "correctness check failed" in records[0].evidence


def test_missing_tokens_are_an_error() -> None:
    (record,) = sweep({"native": FakeBackend(missing=1)}, batch_sizes=(2,))
    assert record.status == "error"
    assert record.evidence is not None
    assert "2 rows of [4] tokens came back, not 2 of 5" in record.evidence


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


def test_a_backend_that_did_not_open_is_in_every_row() -> None:
    clock = Clock()
    unopened = Unopened("5.0", Failure("oom", "loading the model failed: out of memory"))
    records = sweep({"native": FakeBackend(clock=clock), "hf": unopened}, clock=clock)
    assert [r.status for r in records] == ["ok", "oom", "ok", "oom"]
    assert records[1].stack_version == "5.0"


def test_progress_counts_every_run_even_of_a_case_that_failed() -> None:
    clock, progress = Clock(), Count()
    sweep({"native": FakeBackend(clock=clock, fail=out_of_memory_at(1))}, clock=clock, progress=progress)
    assert progress.total == progress.done == 2 * 4


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
