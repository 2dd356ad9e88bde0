"""How a study's cases are run: in turns, with room for all of them, to a record each, whatever happens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from conducted import SESSION, conduct, ends
from fake_worker import GIB, Workshop, plans_of
from hypothesis import given, settings
from hypothesis import strategies as st
from studies import study

from inferometer import __version__
from inferometer.bench.conduct.conductor import BudgetSpentError, Conduct, Conductor
from inferometer.bench.conduct.worker_process import WorkerEndedError
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Record


def test_every_case_has_a_record_that_says_where_it_is_from() -> None:
    records, _ = conduct(plans_of(study()))
    assert sorted(ends(records)) == [("a", 1, "ok"), ("a", 2, "ok"), ("b", 1, "ok"), ("b", 2, "ok")]
    for record in records:
        assert (record.study, record.part) == ("mine", "p")
        assert record.environment["session"] == "s"
        assert record.environment["machine"] == "m"
        assert record.environment["revision"] == "r"
        assert record.environment["torch"] == "its own"
        assert record.environment["beside"] == ["b" if record.column == "a" else "a"]


def test_columns_take_turns_in_blocks_that_mirror_each_other() -> None:
    _, shop = conduct(plans_of(study("[1]", runs=5)))
    assert shop.steps("run") == [(0, "native", 1, 1, 3), (1, "hf", 1, 1, 3), (1, "hf", 1, 1, 2), (0, "native", 1, 1, 2)]
    steps = [entry[0] for entry in shop.log]
    assert steps.index("run") > max(position for position, step in enumerate(steps) if step == "begin")


def test_a_record_is_kept_as_soon_as_its_case_has_ended() -> None:
    shop, kept = Workshop(), []
    conductor = Conductor(SESSION, Conduct(), lambda record: kept.append(len(shop.steps("run"))), study="m", oomed=set, start=shop)  # type: ignore[arg-type]
    with conductor:
        conductor.run(plans_of(study("[1]")))
    assert kept == [3, 4]


def test_a_process_is_told_whether_it_has_the_device_to_itself() -> None:
    _, shop = conduct(plans_of(study("[1]")))
    assert shop.steps("finish") == [(1, True), (0, True)]
    _, shop = conduct(plans_of(study("[1]", columns='[[part.columns]]\nname = "a"\nbackend = "native"\n')))
    assert shop.steps("finish") == [(0, False)]


@pytest.mark.parametrize("runs", [1, 2])
def test_few_runs_are_shared_out_too(runs: int) -> None:
    records, shop = conduct(plans_of(study("[1]", runs=runs)))
    assert [record.status for record in records] == ["ok", "ok"]
    assert Counter(entry[0] for entry in shop.log)["run"] == 2 * runs


def test_a_process_a_column_loads_a_model_for_all_its_cases_and_ends_with_the_last() -> None:
    _, shop = conduct(plans_of(study("[1, 2, 4]")))
    assert len(shop.made) == 2
    assert [entry[0] for entry in shop.log[-3:]] == ["close", "close", "done"]


def test_isolated_cases_have_a_process_each() -> None:
    records, shop = conduct(plans_of(study("[1, 2]")), isolate=True)
    assert len(records) == len(shop.made) == 4
    assert all(worker.closed for worker in shop.made)


def test_cases_that_do_not_fit_together_run_by_themselves_while_others_hold_nothing() -> None:
    held: list[int] = []

    def outcome(case: Case, others: int) -> str:
        held.append(others)
        return "ok"

    records, shop = conduct(plans_of(study("[1]"), memory_bytes=5 * GIB), Workshop(outcome))
    assert [record.environment["beside"] for record in records] == [[], []]
    assert held == [0, 0]
    assert len(shop.steps("release")) == 1
    assert [runs for *_, runs in shop.steps("run")] == [4, 4]


def test_where_no_forecast_can_be_made_cases_run_by_themselves() -> None:
    records, _ = conduct(plans_of(study("[1]"), memory_bytes=None))
    assert [record.environment["beside"] for record in records] == [[], []]


def test_an_oom_beside_others_is_tried_again_alone() -> None:
    def outcome(case: Case, others: int) -> str:
        return "oom: OutOfMemoryError: too much" if case.backend == "hf" and others else "ok"

    records, shop = conduct(plans_of(study("[1]")), Workshop(outcome))
    assert ends(records) == [("a", 1, "ok"), ("b", 1, "ok")]
    assert [entry[1:] for entry in shop.steps("begin")] == [("native", 1), ("hf", 1), ("hf", 1)]
    assert len(shop.made) == 3, "the process whose allocator failed is replaced"


@pytest.mark.parametrize(("kept_bytes", "processes"), [(32 << 20, 4), (2 * GIB, 5)])
def test_workspaces_are_no_model_and_what_is_not_given_back_ends(kept_bytes: int, processes: int) -> None:
    def outcome(case: Case, others: int) -> str:
        return "oom: OutOfMemoryError: too much" if case.backend == "hf" and case.batch_size == 1 else "ok"

    records, shop = conduct(plans_of(study("[1, 2]")), Workshop(outcome, kept_bytes=kept_bytes))
    assert sorted(ends(records)) == [("a", 1, "ok"), ("a", 2, "ok"), ("b", 1, "oom"), ("b", 2, "ok")]
    assert len(shop.made) == processes


def test_an_oom_alone_stands_and_its_process_is_replaced() -> None:
    def outcome(case: Case, others: int) -> str:
        return "oom: OutOfMemoryError: too much" if case.backend == "hf" and case.batch_size == 1 else "ok"

    records, shop = conduct(plans_of(study("[1, 2]")), Workshop(outcome))
    assert sorted(ends(records)) == [("a", 1, "ok"), ("a", 2, "ok"), ("b", 1, "oom"), ("b", 2, "ok")]
    assert [worker.number for worker in shop.made if worker.closed] == [0, 1, 2, 3]


def test_a_sum_done_beforehand_leaves_the_process_as_it_was() -> None:
    columns = '[[part.columns]]\nname = "a"\nbackend = "native"\n'

    def outcome(case: Case, others: int) -> str:
        return "oom: CacheTooSmallError: 9 pages needed, 8 available" if case.batch_size == 1 else "ok"

    records, shop = conduct(plans_of(study("[1, 2]", columns=columns)), Workshop(outcome))
    assert ends(records) == [("a", 1, "oom"), ("a", 2, "ok")]
    assert len(shop.made) == 1


@pytest.mark.parametrize(("words", "processes"), [("AcceleratorError: CUDA error: an illegal memory access", 2), ("ValueError: x", 1)])
def test_a_process_whose_device_keeps_an_error_is_replaced(words: str, processes: int) -> None:
    def outcome(case: Any, others: int) -> str:
        return f"error: {words}" if case.batch_size == 1 else "ok"

    columns = '[[part.columns]]\nname = "a"\nbackend = "native"\n'
    records, shop = conduct(plans_of(study("[1, 2]", columns=columns)), Workshop(outcome))
    assert ends(records) == [("a", 1, "error"), ("a", 2, "ok")]
    assert len(shop.made) == processes


@pytest.mark.parametrize("status", ["timeout", "error", "oom"])
def test_a_process_that_ends_is_replaced_and_the_others_go_on(status: Any) -> None:
    def outcome(case: Case, others: int) -> str | Exception:
        ended = case.backend == "hf" and case.batch_size == 1
        return WorkerEndedError(status, "ended by SIGSEGV") if ended else "ok"

    records, shop = conduct(plans_of(study("[1, 2]")), Workshop(outcome))
    assert sorted(ends(records)) == [("a", 1, "ok"), ("a", 2, "ok"), ("b", 1, status), ("b", 2, "ok")]
    evidence = next(record.evidence for record in records if record.status == status)
    assert evidence is not None
    assert "SIGSEGV" in evidence
    assert all(worker.closed for worker in shop.made)


def test_what_a_process_cannot_do_is_skipped() -> None:
    records, _ = conduct(plans_of(study("[1]")), Workshop(lambda case, others: RuntimeError("no such weights")))
    assert [(record.status, record.evidence) for record in records] == [("skipped", "no such weights")] * 2


def test_a_refusal_is_a_record_and_no_process() -> None:
    records, shop = conduct(plans_of(study("[1]", more="tensor_parallel = 2")))
    assert [record.status for record in records] == ["skipped", "skipped"]
    assert all("--tensor-parallel 2" in str(record.evidence) for record in records)
    assert shop.made == []


def test_a_record_without_a_process_has_the_version_that_others_have() -> None:
    columns = '[[part.columns]]\nname = "b"\nbackend = "native"\n'
    (refused,), _ = conduct(plans_of(study("[1]", columns=columns, more="tensor_parallel = 3")))
    assert (refused.status, refused.stack_version) == ("skipped", __version__)


def test_after_an_oom_only_what_is_impossible_is_not_tried() -> None:
    def outcome(case: Case, others: int) -> str:
        return "oom: OutOfMemoryError: x" if case.batch_size >= 64 else "ok"

    columns = '[[part.columns]]\nname = "b"\nbackend = "hf"\n'
    records, shop = conduct(plans_of(study("[1, 64, 128, 1000000]", columns=columns)), Workshop(outcome))
    assert [record.status for record in records] == ["ok", "oom", "oom", "oom"]
    tried = [size for _, _, size in shop.steps("begin")]
    assert set(tried) == {1, 64, 128}
    assert "not tried" in str(records[-1].evidence)
    assert "GiB" in str(records[-1].evidence)
    records, shop = conduct(plans_of(study("[1000000]", columns=columns)), Workshop(outcome))
    assert len(shop.steps("begin")) == 1, "the first is tried whatever its bound says"
    records, shop = conduct(plans_of(study("[1000000]", columns=columns)), Workshop(outcome), oomed=[("p", "b")])
    assert shop.made == []


def test_a_budget_ends_between_rows_and_the_rest_is_left() -> None:
    plans = plans_of(study("[1, 2, 4, 8]"))
    with pytest.raises(BudgetSpentError):
        conduct(plans, Workshop(step_s=10), budget_s=150)
    shop = Workshop(step_s=10)
    records: list[Record] = []
    conductor = Conductor(SESSION, Conduct(budget_s=150), records.append, study="mine", oomed=set, start=shop, clock=shop.clock)  # type: ignore[arg-type]
    with conductor, pytest.raises(BudgetSpentError):
        conductor.run(plans)
    assert 0 < len(records) < 8
    assert len(records) % 2 == 0
    assert all(worker.closed for worker in shop.made)


def test_one_case_is_run_however_small_the_budget() -> None:
    columns = '[[part.columns]]\nname = "b"\nbackend = "hf"\n'
    plans = plans_of(study("[1, 2]", columns=columns, model="opt-66b"), memory_bytes=900 * GIB)
    assert all((planned.forecast.seconds or 0) > 0.5 for planned in plans)
    records: list[Record] = []
    shop = Workshop(step_s=0)
    conductor = Conductor(SESSION, Conduct(budget_s=0.5), records.append, study="mine", oomed=set, start=shop, clock=shop.clock)  # type: ignore[arg-type]
    with conductor, pytest.raises(BudgetSpentError):
        conductor.run(plans)
    assert len(records) == 1


def test_the_first_cases_are_run_though_the_budget_is_spent_before_they_begin() -> None:
    plans = plans_of(study("[1, 2]"))
    records: list[Record] = []
    shop = Workshop(step_s=1)
    conductor = Conductor(SESSION, Conduct(budget_s=1e-9), records.append, study="mine", oomed=set, start=shop, clock=shop.clock)  # type: ignore[arg-type]
    shop.clock.now += 1
    with conductor, pytest.raises(BudgetSpentError):
        conductor.run(plans)
    assert sorted(ends(records)) == [("a", 1, "ok"), ("b", 1, "ok")]


def test_processes_of_what_comes_later_are_kept() -> None:
    plans = plans_of(study("[1, 2]"))
    _, shop = conduct(plans[:2], later=plans[2:])
    assert ("close", 0) not in shop.log[: shop.log.index(("done",))]


def test_an_interrupt_ends_all_processes() -> None:
    def interrupted(case: Case, others: int) -> str:
        raise KeyboardInterrupt

    shop = Workshop(interrupted)
    with pytest.raises(KeyboardInterrupt):
        conduct(plans_of(study()), shop)
    assert len(shop.made) == 2
    assert all(worker.closed for worker in shop.made)


OUTCOMES = st.sampled_from(
    ["ok", "oom: OutOfMemoryError: x", "oom: CacheTooSmallError: y", "error: RuntimeError: z", "timeout", "crash", "skip"]
)


@settings(max_examples=30, deadline=None)
@given(
    outcomes=st.dictionaries(st.tuples(st.sampled_from(["native", "hf"]), st.sampled_from([1, 2, 4])), OUTCOMES),
    memory=st.sampled_from([None, 2 * GIB, 8 * GIB, 24 * GIB]),
    isolate=st.booleans(),
    runs=st.integers(1, 5),
    crowded=st.booleans(),
    kept_bytes=st.sampled_from([0, 32 << 20, 2 * GIB]),
)
def test_whatever_happens_each_case_has_one_record_and_no_process_stays(
    outcomes: dict[tuple[str, int], str], memory: int | None, isolate: bool, runs: int, crowded: bool, kept_bytes: int
) -> None:
    def outcome(case: Case, others: int) -> str | Exception:
        found = outcomes.get((case.backend, case.batch_size), "ok")
        if crowded and others > kept_bytes:
            return "oom: OutOfMemoryError: others"
        if found in ("timeout", "crash"):
            return WorkerEndedError("timeout" if found == "timeout" else "error", "gone")
        return RuntimeError("not here") if found == "skip" else found

    plans = plans_of(study("[1, 2, 4]", runs=runs), memory_bytes=memory)
    records, shop = conduct(plans, Workshop(outcome, kept_bytes=kept_bytes), isolate=isolate)
    assert Counter((record.part, record.column, record.case_id) for record in records) == Counter(planned.question.key for planned in plans)
    assert all(worker.closed for worker in shop.made)
    expected = {"timeout": "timeout", "crash": "error", "skip": "skipped"}
    for record in records:
        found = outcomes.get((record.backend, record.batch_size), "ok").partition(":")[0]
        untried = "not tried" in str(record.evidence)
        assert record.status == expected.get(found, found) or untried


@settings(max_examples=30, deadline=None)
@given(stop=st.integers(0, 7), again=st.integers(0, 7), isolate=st.booleans())
def test_going_on_after_a_kill_gives_the_same_cases_none_twice(stop: int, again: int, isolate: bool) -> None:
    class KilledError(Exception):
        pass

    plans = plans_of(study("[1, 2, 4]"))
    kept: list[Record] = []
    limit = 0

    def emit(record: Record) -> None:
        if len(kept) >= limit:
            raise KilledError
        kept.append(record)

    for share in (stop, stop + again, len(plans)):
        limit = min(share, len(plans))
        done = {(record.part, record.column, record.case_id) for record in kept}
        left = [planned for planned in plans if planned.question.key not in done]
        shop = Workshop()
        conductor = Conductor(SESSION, Conduct(isolate=isolate), emit, study="mine", oomed=set, start=shop, clock=shop.clock)  # type: ignore[arg-type]
        with conductor:
            if limit < len(plans):
                with pytest.raises(KilledError):
                    conductor.run(left)
            else:
                conductor.run(left)
        assert all(worker.closed for worker in shop.made)
    assert Counter((record.part, record.column, record.case_id) for record in kept) == Counter(planned.question.key for planned in plans)
