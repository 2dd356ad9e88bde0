"""The runner where backends compile, record or measure: what does not count, and what is run again."""

from __future__ import annotations

from typing import Any

from fake_backend import Clock, FakeBackend
from runner_sweep import sweep


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
