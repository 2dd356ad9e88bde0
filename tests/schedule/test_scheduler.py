"""The scheduler's own promises, whatever the admission: refusals, aborts, when seats and pages come back, what it costs."""

from __future__ import annotations

import time

import pytest

from fake_executor import FakeExecutor, make_request
from inferometer.errors import UserError
from inferometer.schedule.admission import Admission
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.groups import Diagonal, Row, Zigzag
from inferometer.schedule.pages import PagePool
from inferometer.schedule.request import Request
from inferometer.schedule.sampling import SamplingParams
from inferometer.schedule.scheduler import RequestTooLargeError, Scheduler

ORDERS = [Continuous(), Zigzag(2), Diagonal(2), Row(2)]
every_order = pytest.mark.parametrize("admission", ORDERS, ids=lambda admission: admission.name)


def scheduler(
    admission: Admission | None = None, *, pages: int = 64, page_size: int = 4, max_batch: int = 8, tokens: int = 64
) -> Scheduler:
    return Scheduler(PagePool(pages, page_size), admission or Continuous(), max_batch=max_batch, sweep_tokens=tokens)


def test_what_could_never_run_is_refused_with_the_numbers_and_the_remedy() -> None:
    small = scheduler(pages=5)
    with pytest.raises(RequestTooLargeError) as refusal:
        small.add(make_request(0, 20, 2))
    message = str(refusal.value)
    assert isinstance(refusal.value, UserError)
    assert "\n" not in message
    for fact in ("20 tokens", "2 new", "6 pages", "4 tokens each", "5 are available", "--gpu-memory"):
        assert fact in message
    assert not small.has_work


def test_what_fits_exactly_runs() -> None:
    run = FakeExecutor(Continuous(), pages=5, page_size=4, sweep_tokens=6, lookahead=1)
    run.add(make_request(0, 20, 1), make_request(1, 11, 10), make_request(2, 1, 20))  # the last token needs no place
    run.run()
    run.check_finished()
    assert run.pool.peak_in_use == 5


def test_an_id_that_is_alive_is_refused_and_can_be_used_again_later() -> None:
    one = scheduler()
    one.add(make_request(7, 3, 2))
    with pytest.raises(ValueError, match="request 7 is already waiting or running"):
        one.add(make_request(7, 3, 2))
    one.abort(7)
    one.add(make_request(7, 3, 2))


@pytest.mark.parametrize(("batch", "tokens"), [(0, 8), (8, 0)])
def test_limits_below_one_are_refused(batch: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        scheduler(max_batch=batch, tokens=tokens)


def test_no_work_no_sweep() -> None:
    idle = scheduler()
    assert idle.next() is None
    assert not idle.has_work
    idle.abort(3)
    idle.check_pages()


@every_order
def test_pages_and_seat_come_back_before_the_last_tokens_are_read(admission: Admission) -> None:
    one = scheduler(admission)
    sequence = one.add(make_request(0, 6, 2))
    first, second = one.next(), one.next()
    assert first is not None
    assert second is not None
    assert sequence.seat is not None
    assert one.next() is None
    assert (sequence.seat, sequence.pages, one.pool.in_use, one.running) == (None, [], 0, 0)
    assert one.has_work
    assert one.take(sequence, 5) is None
    assert one.take(sequence, 6) == "length"
    assert not one.has_work
    assert sequence.tokens[-2:] == [5, 6]


@every_order
def test_pages_and_seat_come_back_with_the_token_that_ends(admission: Admission) -> None:
    one = scheduler(admission)
    sequence = one.add(make_request(0, 6, 9, end_every=1))
    one.next()
    one.next()  # under way when the end is read
    assert one.take(sequence, 0) == "eos_token"
    assert (sequence.ended, sequence.seat, one.pool.in_use, one.has_work) == (True, None, 0, False)
    assert one.take(sequence, 4) is None  # of the sweep that was under way
    assert sequence.tokens[-1] == 0
    one.check_pages()


def test_a_stop_token_ends() -> None:
    one = scheduler()
    params = SamplingParams(max_new_tokens=9, stop_token_ids=(8,))
    sequence = one.add(Request(0, (1, 2), params, 0))
    one.next()
    assert one.take(sequence, 8) == "stop_sequence"


def test_a_token_that_no_sweep_sampled_is_told() -> None:
    one = scheduler()
    sequence = one.add(make_request(0, 6, 9))
    with pytest.raises(RuntimeError, match="token number 1, but 0 were sampled"):
        one.take(sequence, 5)
    one.next()
    one.take(sequence, 5)
    with pytest.raises(RuntimeError, match="token number 2, but 1 were sampled"):
        one.take(sequence, 5)


@every_order
@pytest.mark.parametrize("after", range(7))
def test_an_abort_at_any_moment_leaves_the_others_alone(admission: Admission, after: int) -> None:
    run = FakeExecutor(admission, pages=40, page_size=4, sweep_tokens=16, max_batch=4, lookahead=1)
    run.add(*(make_request(id_, 9 + id_, 5) for id_ in range(7)))
    for _ in range(after):
        run.step()
    run.abort(1)
    run.abort(5)
    run.abort(5)
    run.run()
    run.check_finished()
    assert sum(truth.aborted for truth in run.truths.values()) >= 1


def test_a_preempted_request_can_be_aborted() -> None:
    run = FakeExecutor(Continuous(horizon=0), pages=8, page_size=4, lookahead=1)
    run.add(make_request(0, 8, 20), make_request(1, 8, 20))
    for _ in range(12):
        run.step()
    assert run.scheduler.preemptions == 1
    assert run.scheduler.waiting == 1
    run.abort(1)
    assert run.scheduler.waiting == 0
    run.run()
    run.check_finished()


def test_clear_drops_all_at_once_and_the_scheduler_goes_on() -> None:
    run = FakeExecutor(Continuous(), pages=30, page_size=4, max_batch=2, lookahead=1)
    run.add(*(make_request(id_, 8, 20) for id_ in range(4)))
    for _ in range(3):
        run.step()
    run.scheduler.clear()
    assert not run.scheduler.has_work
    assert run.scheduler.waiting == run.scheduler.running == run.pool.in_use == 0
    run.scheduler.check_pages()
    fresh = FakeExecutor(Continuous(), pages=30, page_size=4)
    fresh.scheduler, fresh.pool = run.scheduler, run.pool
    fresh.add(make_request(0, 8, 20))
    fresh.run()
    fresh.check_finished()


def test_the_leak_check_finds_a_leak() -> None:
    one = scheduler()
    sequence = one.add(make_request(0, 6, 9))
    one.next()
    one.check_pages()
    lost = sequence.pages.pop()
    with pytest.raises(RuntimeError, match="holds 1 pages"):
        one.check_pages()
    sequence.pages.append(lost)
    one.pool.share([lost])
    with pytest.raises(RuntimeError, match=rf"pages \[{lost}\] have more or fewer users"):
        one.check_pages()


@every_order
def test_all_orders_take_seats_from_the_lowest(admission: Admission) -> None:
    one = scheduler(admission)
    sequences = [one.add(make_request(id_, 4, 3)) for id_ in range(2)]
    one.next()
    assert [sequence.seat for sequence in sequences] == [0, 1]


@every_order
def test_the_most_sequences_and_tokens_of_a_sweep_hold(admission: Admission) -> None:
    run = FakeExecutor(admission, pages=400, page_size=4, max_batch=5, sweep_tokens=7)
    run.add(*(make_request(id_, 10, 6) for id_ in range(20)))
    run.run()
    run.check_finished()
    assert max(len(sweep) for sweep in run.sweeps) <= 5
    assert max(sum(count for _, _, count in sweep) for sweep in run.sweeps) <= 7


def test_a_batch_larger_than_a_sweep_still_goes_on() -> None:
    run = FakeExecutor(Continuous(), pages=400, page_size=4, max_batch=50, sweep_tokens=3, lookahead=1)
    run.add(*(make_request(id_, 5, 6) for id_ in range(20)))
    run.run()
    run.check_finished()


@pytest.mark.parametrize("waiting", [0, 20_000])
def test_a_sweep_of_256_that_decode_costs_the_host_well_under_a_millisecond(waiting: int) -> None:
    one = scheduler(pages=20_000, page_size=16, max_batch=256, tokens=8192)
    for id_ in range(256 + waiting):
        one.add(make_request(id_, 8, 60))
    times = []
    for _ in range(50):
        start = time.perf_counter()
        sweep = one.next()
        assert sweep is not None
        for share in sweep.shares:
            one.take(share.sequence, 5)
        if sweep.decoding == 256:
            times.append(time.perf_counter() - start)
    assert len(times) > 40
    assert min(times) < 1e-3  # the least of many: the rest is the machine's other work
