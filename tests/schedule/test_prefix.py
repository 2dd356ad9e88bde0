"""Prefix caching: pages are found by all tokens up to their end, computed tokens are saved, and never those that are needed."""

from __future__ import annotations

import pytest

from fake_executor import FakeExecutor, make_request
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.groups import Zigzag
from inferometer.schedule.pages import PagePool
from inferometer.schedule.prefix import page_digest, root_digest
from inferometer.schedule.request import Request
from inferometer.schedule.scheduler import Scheduler

TEXT = tuple(range(1, 400))


def executor(pages: int = 200, **options: object) -> FakeExecutor:
    return FakeExecutor(Continuous(), pages=pages, **{"page_size": 16, "lookahead": 1, **options})  # type: ignore[arg-type]


def computed(run: FakeExecutor, request_id: int) -> int:
    return sum(count for sweep in run.sweeps for id_, _, count in sweep if id_ == request_id)


def test_a_digest_depends_on_its_tokens_and_all_before() -> None:
    root = root_digest(b"")
    first = page_digest(root, [1, 2, 3])
    assert first == page_digest(root, (1, 2, 3))
    assert len({first, page_digest(root, [1, 2, 4]), page_digest(root, [3, 2, 1]), page_digest(root_digest(b"x"), [1, 2, 3])}) == 4
    assert page_digest(first, [7]) != page_digest(page_digest(root, [9, 9, 9]), [7])
    assert page_digest(root, [2**40]) != page_digest(root, [0])


def test_a_second_request_computes_only_what_differs() -> None:
    run = executor()
    run.add(make_request(0, TEXT[:100], 4))
    run.run()
    assert run.scheduler.hit_pages == 0
    run.add(make_request(1, (*TEXT[:80], 9000, 9001), 4))
    run.run()
    assert run.scheduler.hit_pages == 5
    assert run.scheduler.hit_tokens == 80
    assert run.truths[1].sequence.cached == 80
    assert computed(run, 1) == 82 - 80 + 3
    run.check_finished()


def test_a_page_that_differs_in_one_token_ends_what_is_found() -> None:
    run = executor()
    run.add(make_request(0, TEXT[:100], 4))
    run.run()
    run.add(make_request(1, (*TEXT[:40], 9000, *TEXT[41:100]), 4))
    run.run()
    assert run.truths[1].sequence.cached == 32
    run.check_finished()


def test_equal_tokens_elsewhere_are_not_found() -> None:
    run = executor()
    run.add(make_request(0, TEXT[:64], 4))
    run.run()
    run.add(make_request(1, TEXT[16:64], 4))
    run.run()
    assert run.scheduler.hit_pages == 0
    run.check_finished()


def test_the_last_token_is_always_computed() -> None:
    for length in (32, 33, 48):
        run = executor()
        run.add(make_request(0, TEXT[:length], 1))
        run.run()
        run.add(make_request(1, TEXT[:length], 1))
        run.run()
        assert run.truths[1].sequence.cached == (length - 1) // 16 * 16
        run.check_finished()


def test_requests_that_arrive_together_compute_their_common_beginning_once() -> None:
    run = executor()
    run.add(*(make_request(id_, (*TEXT[:320], 5000 + id_), 4) for id_ in range(10)))
    run.step()
    assert sum(count for _, _, count in run.sweeps[0]) == 321 + 9
    assert run.pool.in_use == 20 + 10
    run.run()
    assert run.scheduler.hit_pages == 9 * 20
    run.check_finished()


@pytest.mark.parametrize("sweep_tokens", [64, 70, 90])
def test_long_prompts_that_begin_alike_follow_each_other_piece_by_piece(sweep_tokens: int) -> None:
    run = executor(sweep_tokens=sweep_tokens)
    run.add(*(make_request(id_, (*TEXT[:384], 5000 + id_), 4) for id_ in range(4)))
    run.run()
    assert sum(computed(run, id_) for id_ in range(4)) <= 384 + 4 + 4 * 3 + 16
    run.check_finished()


def test_the_next_turn_finds_what_the_last_one_generated() -> None:
    run = executor()
    run.add(make_request(0, TEXT[:40], 60))
    run.run()
    said = run.truths[0].read
    run.add(make_request(1, (*TEXT[:40], *said, 8000, 8001), 5))
    run.run()
    assert run.truths[1].sequence.cached == 96  # of 100 tokens, the last never run
    run.check_finished()


def test_the_last_page_of_a_sequence_that_has_ended_is_found() -> None:
    run = executor(lookahead=0)
    run.add(make_request(0, TEXT[:33], 16))  # 48 tokens run
    run.run()
    run.add(make_request(1, (*TEXT[:33], *run.truths[0].read, 8000), 5))
    run.run()
    assert run.truths[1].sequence.cached == 48
    run.check_finished()


def test_what_a_sequence_has_generated_is_found_while_it_goes_on() -> None:
    run = executor()
    run.add(make_request(0, TEXT[:40], 200))
    for _ in range(60):
        run.step()
    run.add(make_request(1, (*TEXT[:40], *run.truths[0].read[:50]), 5))
    run.run()
    assert run.truths[1].sequence.cached == 80
    run.check_finished()


def test_requests_computed_side_by_side_out_of_step_both_keep_their_own_pages() -> None:
    run = executor(sweep_tokens=5, page_size=4)
    run.add(*(make_request(id_, (*TEXT[:50], 5000 + id_), 9) for id_ in range(3)))
    run.run()
    run.check_finished()
    run.add(make_request(3, TEXT[:50], 2))
    run.run()
    assert run.truths[3].sequence.cached == 48
    run.check_finished()


def test_one_whose_pages_had_doubles_finds_and_publishes_again_when_it_comes_back() -> None:
    returned = []
    for pages in range(24, 34):
        run = FakeExecutor(Continuous(horizon=0), pages=pages, page_size=4, sweep_tokens=5, lookahead=1)
        run.add(*(make_request(id_, (*TEXT[:50], 5000 + id_), 30) for id_ in range(3)))
        sequence = run.truths[2].sequence
        while not sequence.preempted and not sequence.ended:
            had_doubles = sequence.shadowed
            run.step()
        sweeps = len(run.sweeps)
        run.run()
        run.check_finished()
        starts = [start for sweep in run.sweeps[sweeps:] for id_, start, _ in sweep if id_ == 2]
        returned += [starts[0]] if had_doubles else []
    assert returned
    assert min(returned) >= 40


def test_pages_that_are_recomputed_are_found_again() -> None:
    run = FakeExecutor(Continuous(horizon=0), pages=20, page_size=4, lookahead=1)
    run.add(make_request(0, 20, 52), make_request(1, TEXT[:20], 40))
    run.run()
    assert run.truths[1].sequence.preempted == 1
    run.check_finished()
    run.add(make_request(2, (*TEXT[:20], *run.truths[1].read[:10], 7), 4))
    run.run()
    assert run.truths[2].sequence.cached == 28
    run.check_finished()


def test_the_block_table_is_told_of_all_pages_when_a_sequence_sits_down_or_finds_more() -> None:
    scheduler = Scheduler(PagePool(100, 16), Continuous(), max_batch=8, sweep_tokens=64)
    sequences = [scheduler.add(make_request(id_, (*TEXT[:160], 5000 + id_), 4)) for id_ in range(2)]
    told = []
    while any(sequence.computed < 160 for sequence in sequences):
        sweep = scheduler.next()
        assert sweep is not None
        told.append([(share.sequence.request.id, share.start, share.enters) for share in sweep.shares])
    assert told[0] == [(0, 0, True), (1, 32, True)]
    assert told[1][0] == (0, 64, True)


def test_what_is_asked_of_prompt_tokens_is_computed_though_it_is_cached() -> None:
    run = executor()
    run.add(make_request(0, TEXT[:100], 4))
    run.run()
    run.add(make_request(1, TEXT[:100], 4, prompt_logprobs=True))
    run.run()
    assert run.truths[1].sequence.cached == 0
    assert computed(run, 1) == 103
    run.check_finished()


def test_a_recomputed_sequence_finds_its_own_pages_and_asks_its_prompt_once() -> None:
    run = FakeExecutor(Continuous(horizon=0), pages=12, page_size=4, sweep_tokens=8, lookahead=1)
    run.add(make_request(0, 12, 30, prompt_logprobs=True), make_request(1, 12, 30, prompt_logprobs=True))
    run.run()
    assert run.scheduler.preemptions > 0
    assert run.truths[1].sequence.preempted > 0
    run.check_finished()
    assert run.truths[1].sequence.cached == 0  # found again, but computed once: nobody was spared it


def test_pages_of_the_cache_give_way_to_those_that_run() -> None:
    run = executor(pages=8)
    run.add(make_request(0, TEXT[:100], 4))
    run.run()
    assert run.pool.kept == 6
    run.add(make_request(1, 120, 9))
    run.run()
    assert run.pool.kept == 8
    run.add(make_request(2, TEXT[:100], 4))
    run.run()
    assert run.scheduler.hit_pages == 0
    run.check_finished()


def test_without_caching_nothing_is_found_or_kept() -> None:
    run = executor(prefix_caching=False)
    run.add(*(make_request(id_, TEXT[:100], 4) for id_ in range(3)))
    run.run()
    assert run.scheduler.hit_pages == run.pool.kept == 0
    run.check_finished()


def test_requests_of_different_salt_share_nothing() -> None:
    def salt(request: Request) -> bytes:
        return str(len(request.prompt_token_ids)).encode()

    scheduler = Scheduler(PagePool(100, 16), Continuous(), max_batch=8, sweep_tokens=512, salt=salt)
    for id_, length in enumerate((100, 101, 100)):
        scheduler.add(make_request(id_, TEXT[:length], 1))
    sweep = scheduler.next()
    assert sweep is not None
    assert [share.start for share in sweep.shares] == [0, 0, 96]


def test_clear_forgets_the_cache() -> None:
    run = executor()
    run.add(make_request(0, TEXT[:100], 4))
    run.run()
    run.scheduler.clear()
    assert run.pool.kept == 0
    run.add(make_request(1, TEXT[:100], 4))
    run.run()
    assert run.scheduler.hit_pages == 0


def test_groups_share_as_well() -> None:
    run = FakeExecutor(Zigzag(4, 2), pages=100, page_size=16)
    run.add(*(make_request(id_, (*TEXT[:64], 5000 + id_), 6) for id_ in range(8)))
    run.run()
    assert run.scheduler.hit_pages == 7 * 4
    run.check_finished()
