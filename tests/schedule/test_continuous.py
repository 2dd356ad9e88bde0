"""Continuous admission: large and small go on together, order is kept within bounds, and what has to give way is the youngest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_executor import FakeExecutor, make_request
from inferometer.schedule.continuous import OVERTAKES, Continuous


def test_prompts_run_in_pieces_beside_those_that_decode() -> None:
    run = FakeExecutor(Continuous(), pages=100, page_size=4, sweep_tokens=32)
    run.add(make_request(0, 8, 30))
    run.step()
    run.add(make_request(1, 100, 4))
    run.run()
    mixed = [sweep for sweep in run.sweeps if len(sweep) == 2]
    assert [piece for sweep in mixed for piece in sweep if piece[0] == 1][:4] == [(1, 0, 28), (1, 28, 28), (1, 56, 28), (1, 84, 16)]
    assert all((sweep[0][0], sweep[0][2]) == (0, 1) for sweep in mixed)
    run.check_finished()


def test_prompts_have_their_tokens_however_many_decode_and_all_if_nobody_does() -> None:
    run = FakeExecutor(Continuous(prompt_tokens=8), pages=400, page_size=4, sweep_tokens=64)
    run.add(make_request(0, 60, 40))
    run.step()
    assert run.sweeps[0] == [(0, 0, 60)]
    for id_ in range(1, 13):  # twelve that come to decode, one behind the other
        run.add(make_request(id_, 8, 40))
        run.step()
    run.add(make_request(13, 100, 2))
    run.step()
    run.step()
    for sweep in run.sweeps[1:]:
        assert sum(count for _, _, count in sweep if count > 1) <= 8
    assert [len(sweep) for sweep in run.sweeps[-2:]] == [14, 14]
    assert [piece for sweep in run.sweeps[-2:] for piece in sweep if piece[0] == 13] == [(13, 0, 8), (13, 8, 8)]
    run.run()
    run.check_finished()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_small_requests_go_on_behind_a_huge_one_which_goes_on_as_well(lookahead: int) -> None:
    run = FakeExecutor(Continuous(), pages=2000, page_size=16, sweep_tokens=512, lookahead=lookahead)
    run.add(make_request(0, 20_000, 4), *(make_request(id_, 20, 8) for id_ in range(1, 51)))
    run.run()
    run.check_finished()
    assert max(run.truths[id_].last_sweep or 0 for id_ in range(1, 51)) <= 16
    assert (run.truths[0].last_sweep or 0) <= 20_000 / 512 + 16


def test_several_huge_prompts_do_not_block_a_small_one() -> None:
    run = FakeExecutor(Continuous(), pages=2000, page_size=16, sweep_tokens=512)
    run.add(*(make_request(id_, 5000, 4) for id_ in range(3)), make_request(3, 20, 4))
    run.run()
    assert run.truths[3].last_sweep == 3
    run.check_finished()


def test_a_huge_request_is_served_in_time_though_small_ones_never_stop_coming() -> None:
    run = FakeExecutor(Continuous(), pages=2000, page_size=16, sweep_tokens=512, max_batch=64, lookahead=1)
    run.add(make_request(0, 10_000, 20))
    for id_ in range(1, 4000, 10):
        run.add(*(make_request(id_ + i, 40, 5) for i in range(10)))  # more than there is room for
        run.step()
        if run.truths[0].sequence.ended:
            break
    assert (run.truths[0].last_sweep or 0) <= 10_000 / 256 + 16 + 20 + 5
    assert run.scheduler.waiting > 0
    run.run()
    run.check_finished()


def test_half_of_what_is_left_goes_to_the_oldest_prompt_and_all_if_nobody_wants_it() -> None:
    run = FakeExecutor(Continuous(), pages=400, page_size=16, sweep_tokens=256)
    run.add(*(make_request(id_, 1000, 1) for id_ in range(2)))
    run.step()
    run.step()
    assert run.sweeps[1] == [(0, 192, 192), (1, 64, 64)]
    assert run.sweeps[0] == [(0, 0, 192), (1, 0, 64)]  # half of 256, half of what was left then, and the rest back to the first
    alone = FakeExecutor(Continuous(), pages=400, page_size=16, sweep_tokens=256)
    alone.add(make_request(0, 1000, 1))
    alone.step()
    assert alone.sweeps[0] == [(0, 0, 256)]


def test_one_that_waits_for_pages_is_overtaken_so_often_and_no_more() -> None:
    run = FakeExecutor(Continuous(), pages=100, page_size=16, lookahead=1)
    run.add(*(make_request(id_, 16, 40) for id_ in range(10)))
    run.step()
    large = 10
    run.add(make_request(large, 1500, 20))
    for id_ in range(11, 2000):
        run.add(make_request(id_, 16, 40))
        run.step()
        if run.truths[large].sequence.ended:
            break
    entered = run.truths[large].first_sweep
    assert entered is not None
    earlier = [id_ for id_, truth in run.truths.items() if id_ > large and truth.first_sweep is not None and truth.first_sweep < entered]
    assert 1 <= len(earlier) <= OVERTAKES
    assert entered <= 150  # 25 small ones at a time run 40 sweeps each: as many as overtake it, and the last of them
    run.run()
    run.check_finished()


def test_requests_that_fit_keep_their_order() -> None:
    run = FakeExecutor(Continuous(), pages=50, page_size=4, max_batch=4, sweep_tokens=64, lookahead=1)
    run.add(*(make_request(id_, 8, 5 + id_ % 4) for id_ in range(30)))
    run.run()
    first = [run.truths[id_].first_sweep or 0 for id_ in range(30)]
    assert first == sorted(first)
    run.check_finished()


def test_the_youngest_is_preempted_and_comes_back_before_those_that_never_ran() -> None:
    run = FakeExecutor(Continuous(horizon=0), pages=12, page_size=4, max_batch=3, lookahead=1)
    run.add(*(make_request(id_, 12, 24) for id_ in range(3)), make_request(3, 4, 4))
    run.run()
    run.check_finished()
    assert run.truths[0].sequence.preempted == 0
    assert run.truths[2].sequence.preempted >= 1
    assert run.truths[0].last_sweep == 23  # one token a sweep from the first on
    recomputed = [number for number, sweep in enumerate(run.sweeps) for id_, _, count in sweep if id_ == 2 and count > 1]
    assert recomputed[-1] > recomputed[0] == 0
    assert (run.truths[3].first_sweep or 0) >= recomputed[-1]


@pytest.mark.parametrize(("pages", "sweep_tokens"), [(11, 3), (12, 4), (12, 5), (13, 8), (15, 4)])
def test_the_oldest_gets_pages_for_its_prompt_from_those_that_have_grown_beside_it(pages: int, sweep_tokens: int) -> None:
    run = FakeExecutor(Continuous(horizon=0), pages=pages, page_size=4, sweep_tokens=sweep_tokens, lookahead=1)
    run.add(make_request(0, 40, 1), make_request(1, 4, 30))
    run.run()  # the executor checks that the oldest goes on in every sweep
    run.check_finished()
    assert run.truths[1].sequence.preempted == 1


def test_a_preempted_sequence_waits_until_its_tokens_are_read() -> None:
    run = FakeExecutor(Continuous(horizon=0), pages=6, page_size=4, lookahead=2)
    run.add(make_request(0, 7, 17), make_request(1, 7, 9))
    unread = []
    while run.scheduler.has_work:
        before = run.truths[1].sequence.seat
        run.step()
        sequence = run.truths[1].sequence
        if before is not None and sequence.seat is None and not sequence.ended and sequence.remaining:
            unread.append(sequence.unread)
    run.run()
    run.check_finished()
    assert run.scheduler.preemptions >= 1
    assert max(unread) >= 1


def test_with_pages_for_a_while_ahead_hardly_anyone_is_preempted() -> None:
    requests = [make_request(id_, 30 + 7 * (id_ % 11), 20 + 13 * (id_ % 17)) for id_ in range(150)]
    counts = {}
    for horizon in (0, Continuous().horizon):
        run = FakeExecutor(Continuous(horizon), pages=300, page_size=16, lookahead=1, strict=False)
        run.add(*requests)
        run.run()
        run.check_finished()
        counts[horizon] = run.scheduler.preemptions
    assert counts[0] > 30
    assert counts[Continuous().horizon] < counts[0] / 10


@given(prompts=st.lists(st.integers(1, 90), min_size=1, max_size=12), new=st.integers(1, 40), page_size=st.sampled_from([1, 4, 16]))
@settings(max_examples=60, deadline=None)
def test_all_that_fit_together_run_together_without_preemption(prompts: list[int], new: int, page_size: int) -> None:
    pages = sum(-(-(prompt + new - 1) // page_size) for prompt in prompts)
    run = FakeExecutor(Continuous(), pages=pages, page_size=page_size)
    run.add(*(make_request(id_, prompt, new) for id_, prompt in enumerate(prompts)))
    run.step()
    assert len(run.sweeps[0]) == len(prompts)
    run.run()
    assert len(run.sweeps) == new
    assert run.scheduler.preemptions == 0
    assert run.pool.peak_in_use == pages
    run.check_finished()
