"""Zigzag, diagonal and row: who enters at which sweep, and exactly so many pages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_executor import FakeExecutor, make_request
from inferometer.schedule.admission import Admission
from inferometer.schedule.groups import Diagonal, Row, Zigzag, _most_sweeps
from inferometer.schedule.life import Life, peak_pages

PROMPT, NEW, SIZE, PAGE = 512, 32, 8, 16


def pages_at(age: int, prompt: int = PROMPT, page: int = PAGE) -> int:
    return -(-(prompt + age) // page)


def zigzag_peak(groups: int) -> int:
    return groups * SIZE * pages_at(NEW - 1)


def diagonal_by_hand(groups: int, most: int, pages: int, prompt: int = PROMPT, new: int = NEW, size: int = SIZE) -> tuple[list[int], int]:
    """The sweep in which each of equal groups enters, and the most pages in use: sweep by sweep, by nothing but ages."""

    def used(ages: list[int], later: int) -> int:
        return sum(size * pages_at(age + later, prompt) for age in ages if age + later < new)

    ages: list[int] = []
    entered: list[int] = []
    peak = sweep = 0
    while len(entered) < groups or ages:
        ages = [age + 1 for age in ages if age + 1 < new]
        if len(entered) < groups and len(ages) < most and all(used([*ages, 0], later) <= pages for later in range(new)):
            ages.append(0)
            entered.append(sweep)
        peak = max(peak, used(ages, 0))
        sweep += 1
    return entered, peak


def job(admission: Admission, pages: int, requests: int = 256, prompt: int = PROMPT, new: int = NEW, lookahead: int = 1) -> FakeExecutor:
    run = FakeExecutor(admission, pages=pages, lookahead=lookahead, prefix_caching=False, strict=False)
    run.add(*(make_request(id_, prompt, new) for id_ in range(requests)))
    run.run()
    run.check_finished()
    assert run.scheduler.preemptions == 0
    assert run.pool.peak_in_use == max(run.used)
    return run


def entries(run: FakeExecutor, size: int = SIZE) -> list[int]:
    """The sweep in which each group of `size` entered."""
    first = [run.truths[id_].first_sweep for id_ in sorted(run.truths)]
    groups = [first[i : i + size] for i in range(0, len(first), size)]
    assert all(len(set(group)) == 1 for group in groups)
    return [group[0] or 0 for group in groups]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_document_000_zigzag(lookahead: int) -> None:
    run = job(Zigzag(SIZE, 32), 8704, lookahead=lookahead)
    assert run.pool.peak_in_use == zigzag_peak(32) == 8704
    prefill = -(-256 * PROMPT // 8192)
    assert len(run.sweeps) == prefill + NEW - 1
    assert all(count == 1 for sweep in run.sweeps[prefill:] for _, _, count in sweep)
    assert all(len(sweep) == 256 for sweep in run.sweeps[prefill:])


@pytest.mark.parametrize("lookahead", [0, 1])
def test_document_000_diagonal(lookahead: int) -> None:
    run = job(Diagonal(SIZE, 32), 8560, lookahead=lookahead)
    assert run.pool.peak_in_use == SIZE * sum(pages_at(age) for age in range(NEW)) == 8560
    assert entries(run) == list(range(32))
    assert len(run.sweeps) == 32 + NEW - 1


def test_document_000_row() -> None:
    run = job(Row(SIZE), 8704)
    assert run.pool.peak_in_use == zigzag_peak(1)
    assert entries(run) == [NEW * group for group in range(32)]
    assert len(run.sweeps) == 32 * NEW


@pytest.mark.parametrize("most", [3, 31, None])
def test_zigzag_with_fewer_groups_than_there_are(most: int | None) -> None:
    run = job(Zigzag(SIZE, most), 8704)
    assert run.pool.peak_in_use == zigzag_peak(min(most or 32, 32))


@pytest.mark.parametrize("most", [1, 8, 31])
def test_diagonal_with_fewer_groups_than_there_are(most: int | None) -> None:
    run = job(Diagonal(SIZE, most), 8704)
    assert (entries(run), run.pool.peak_in_use) == diagonal_by_hand(32, most or 99, 8704)


@pytest.mark.parametrize("pages", [543, 544, 8703])
def test_zigzag_in_a_pool_too_small_for_all(pages: int) -> None:
    run = job(Zigzag(SIZE), pages)
    assert run.pool.peak_in_use == zigzag_peak(pages // (SIZE * pages_at(NEW - 1)))


@pytest.mark.parametrize("pages", [272, 529, 4321, 8559])
def test_diagonal_in_a_pool_too_small_for_all(pages: int) -> None:
    run = job(Diagonal(SIZE), pages)
    assert (entries(run), run.pool.peak_in_use) == diagonal_by_hand(32, 99, pages)


@given(pages=st.integers(60, 500), prompt=st.integers(1, 100), new=st.integers(1, 40), groups=st.integers(1, 12), most=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_diagonal_enters_as_early_as_pages_permit(pages: int, prompt: int, new: int, groups: int, most: int) -> None:
    size = 3
    pages = max(pages, size * pages_at(new - 1, prompt))
    run = job(Diagonal(size, most), pages, size * groups, prompt, new)
    assert (entries(run, size), run.pool.peak_in_use) == diagonal_by_hand(groups, most, pages, prompt, new, size)


def test_zigzag_decodes_only_once_all_prompts_are_computed_and_blocks_do_not_mix() -> None:
    run = FakeExecutor(Zigzag(2, 3), pages=1000, page_size=4, sweep_tokens=16, lookahead=1)
    run.add(*(make_request(id_, 5 + 3 * id_, 4 + id_ % 3) for id_ in range(9)))
    run.run()
    run.check_finished()
    for block in (range(6), range(6, 9)):
        mine = [sweep for sweep in run.sweeps if any(id_ in block for id_, _, _ in sweep)]
        assert all(id_ in block for sweep in mine for id_, _, _ in sweep)
        prompts = {id_: 5 + 3 * id_ for id_ in block}
        decoding = [all(start >= prompts[id_] for id_, start, _ in sweep) for sweep in mine]
        assert decoding == sorted(decoding)
        assert not any(
            any(start >= prompts[id_] for id_, start, _ in sweep) for sweep, all_ in zip(mine, decoding, strict=True) if not all_
        )


def test_a_block_ends_with_its_last_sequence_however_it_ends() -> None:
    run = FakeExecutor(Zigzag(2, 1), pages=100, page_size=4, lookahead=1)
    run.add(make_request(0, 5, 30), make_request(1, 5, 30, end_every=1), make_request(2, 5, 3), make_request(3, 5, 3))
    run.run()
    run.check_finished()
    assert entries(run, 2) == [0, 30]


def test_diagonal_runs_prompts_beside_those_that_decode() -> None:
    run = FakeExecutor(Diagonal(2, 4), pages=400, page_size=4, lookahead=1)
    run.add(*(make_request(id_, 9, 5) for id_ in range(8)))
    run.run()
    assert run.sweeps[2] == [(0, 10, 1), (1, 10, 1), (2, 9, 1), (3, 9, 1), (4, 0, 9), (5, 0, 9)]
    run.check_finished()


def test_diagonal_waits_with_the_next_group_until_a_long_prompt_is_computed() -> None:
    run = FakeExecutor(Diagonal(1), pages=400, page_size=4, sweep_tokens=16, lookahead=1)
    run.add(make_request(0, 40, 5), make_request(1, 4, 5))
    run.run()
    assert entries(run, 1) == [0, 3]
    run.check_finished()


@pytest.mark.parametrize("admission", [Zigzag(10), Diagonal(10), Row(10), Zigzag(10, 3), Diagonal(10, 3)], ids=repr)
def test_a_group_that_is_too_large_is_cut_to_what_fits(admission: Admission) -> None:
    run = FakeExecutor(admission, pages=20, page_size=4, max_batch=6, lookahead=1)
    run.add(*(make_request(id_, 9, 12) for id_ in range(13)))  # 5 pages each
    run.run()
    run.check_finished()
    assert run.pool.peak_in_use == 20
    few = FakeExecutor(admission, pages=1000, page_size=4, max_batch=6, lookahead=1)
    few.add(*(make_request(id_, 9, 12) for id_ in range(13)))
    few.run()
    few.check_finished()
    assert max(len(sweep) for sweep in few.sweeps) == 6


@pytest.mark.parametrize(("pages", "enters"), [(12, 40), (13, 40), (14, 1)])
def test_diagonal_foresees_how_long_a_prompt_takes_that_needs_several_sweeps(pages: int, enters: int) -> None:
    # Beside the one that decodes, 4 of a sweep's 5 tokens are left: ten sweeps, in the last of which the other holds four pages.
    run = FakeExecutor(Diagonal(1), pages=pages, page_size=4, sweep_tokens=5, lookahead=1)
    run.add(make_request(0, 4, 40), make_request(1, 40, 1))
    run.run()
    run.check_finished()
    assert entries(run, 1) == [0, enters]


def entries_by_hand(shapes: list[tuple[int, int]], size: int, pages: int, page: int) -> list[int]:
    """As diagonal_by_hand, for requests of unequal (prompt, new): the sweep in which each enters."""

    def used(flying: list[tuple[int, int, int]], later: int) -> int:
        return sum(pages_at(age + later, prompt, page) for prompt, new, age in flying if age + later < new)

    flying: list[tuple[int, int, int]] = []
    entered: list[int] = []
    sweep = 0
    while len(entered) < len(shapes):
        flying = [(prompt, new, age + 1) for prompt, new, age in flying if age + 1 < new]
        group = [(prompt, new, 0) for prompt, new in shapes[len(entered) : len(entered) + size]]
        if all(used(flying + group, later) <= pages for later in range(40)):
            flying += group
            entered += [sweep] * len(group)
        sweep += 1
    return entered


@given(data=st.data(), size=st.integers(1, 3), page=st.sampled_from([1, 4, 16]))
@settings(max_examples=40, deadline=None)
def test_diagonal_of_unequal_requests_enters_as_early_as_pages_permit(data: st.DataObject, size: int, page: int) -> None:
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=12))
    most = [pages_at(new - 1, prompt, page) for prompt, new in shapes]
    pages = max(sum(most[i : i + size]) for i in range(0, len(most), size)) + data.draw(st.integers(0, 2 * max(most)))
    run = FakeExecutor(Diagonal(size), pages=pages, page_size=page, prefix_caching=False)
    run.add(*(make_request(id_, *shape) for id_, shape in enumerate(shapes)))
    run.run()
    run.check_finished()
    assert entries(run, 1) == entries_by_hand(shapes, size, pages, page)


lives = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 30), st.integers(0, 1)), min_size=0, max_size=12)


@given(lives=lives, page_size=st.sampled_from([1, 2, 5, 16]))
@settings(max_examples=75, deadline=None)
def test_the_peak_of_lives_is_that_of_counting_every_sweep(lives: Sequence[tuple[int, int, int]], page_size: int) -> None:
    counted = [
        sum(-(-(tokens + growth * sweep) // page_size) for tokens, sweeps, growth in lives if sweep <= sweeps) for sweep in range(31)
    ]
    assert peak_pages([Life(*life) for life in lives], page_size) == max(counted, default=0)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_nobody_in_a_diagonal_of_unequal_requests_ever_lacks_pages(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 70), st.integers(1, 30)), min_size=1, max_size=20))
    largest = max(-(-(prompt + new - 1) // page_size) for prompt, new in shapes)
    run = FakeExecutor(
        Diagonal(data.draw(st.integers(1, 5)), data.draw(st.one_of(st.none(), st.integers(1, 5)))),
        pages=largest + data.draw(st.integers(0, 3 * largest)),
        page_size=page_size,
        sweep_tokens=data.draw(st.sampled_from([8, 32, 128, 1000])),
        max_batch=data.draw(st.integers(1, 12)),
        lookahead=data.draw(st.integers(0, 1)),
    )
    run.add(*(make_request(id_, prompt, new, end_every=id_ % 3 * 4) for id_, (prompt, new) in enumerate(shapes)))
    run.run()
    run.check_finished()


@settings(max_examples=100, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    tokens=st.integers(1, 40),
    page_size=st.sampled_from((1, 2, 3, 7, 8, 16)),
    more=st.lists(st.integers(0, 20), min_size=1, max_size=5),
)
def test_prompts_never_take_more_sweeps_than_diagonal_allows_for(prompts: list[int], tokens: int, page_size: int, more: list[int]) -> None:
    computed, sweeps = [0] * len(prompts), 0
    while computed != prompts:
        left = tokens + more[sweeps % len(more)]
        sweeps += 1
        for i, prompt in enumerate(prompts):
            stop = min(computed[i] + left, prompt)
            if stop < prompt and stop - stop % page_size > computed[i]:
                stop -= stop % page_size
            left -= stop - computed[i]
            computed[i] = stop
    assert sweeps <= _most_sweeps(prompts, tokens, page_size)
