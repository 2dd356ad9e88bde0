"""The runner where cases fail: what is in their rows, and what becomes of the others."""

from __future__ import annotations

import pytest
import torch
from fake_backend import VOCABULARY, Clock, FakeBackend
from runner_sweep import Count, out_of_memory_at, sweep

from inferometer.bench.backends.prompts import random_prompts
from inferometer.bench.measurement.column import Failure, Unopened
from inferometer.hardware.host_memory import free_host_bytes


@pytest.mark.parametrize(
    ("where", "phase"),
    [
        ("prepare", "while room was made"),
        ("logits", "in the check before the first run"),
        ("prefill", "in the prefill"),
        ("decode", "in decode"),
    ],
)
def test_a_batch_size_that_runs_out_of_memory_is_a_row_and_the_others_run(where: str, phase: str) -> None:
    clock = Clock()
    backend = FakeBackend(clock=clock, fail=out_of_memory_at(2, where))
    records = sweep({"native": backend}, batch_sizes=(1, 2, 4), clock=clock)
    assert [r.status for r in records] == ["ok", "oom", "ok"]
    assert records[1].evidence is not None
    assert "Tried to allocate 1 GiB" in records[1].evidence
    assert records[1].evidence.endswith(phase)
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
