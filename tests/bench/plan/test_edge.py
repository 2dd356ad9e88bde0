"""The search for the largest batch that fits."""

from __future__ import annotations

from collections.abc import Sequence

from fake_worker import plans_of, record_of
from hypothesis import given
from hypothesis import strategies as st
from studies import study

from inferometer.bench.plan.edge import LARGEST, next_batch
from inferometer.bench.plan.edge_search import edge_searches
from inferometer.bench.plan.plan import Planned
from inferometer.bench.records.record import Record


def search(edge: int, known: dict[int, bool], guess: int | None) -> tuple[dict[int, bool], int]:
    """All that was tried until the end, if batches up to `edge` fit, and in how many steps."""
    steps = 0
    while (size := next_batch(known, guess)) is not None:
        assert size not in known, "nothing is tried twice"
        assert 1 <= size <= LARGEST
        known[size] = size <= edge
        steps += 1
        assert steps < 60
    return known, steps


@given(edge=st.integers(0, 1 << 19), tried=st.sets(st.integers(1, 1 << 20), max_size=6), guess=st.none() | st.integers(0, 1 << 21))
def test_the_edge_is_found(edge: int, tried: set[int], guess: int | None) -> None:
    known, _ = search(edge, {size: size <= edge for size in tried}, guess)
    under, over = max((size for size in known if known[size]), default=0), min(size for size in known if not known[size])
    assert under <= edge < over
    assert over - under <= max(1, under // 64)


@given(edge=st.integers(1, 127), guess=st.none() | st.integers(1, 500))
def test_a_small_edge_is_exact(edge: int, guess: int | None) -> None:
    known, _ = search(edge, {1: True}, guess)
    assert max(size for size in known if known[size]) == edge


def test_a_good_guess_saves_steps() -> None:
    sweep = {size: size <= 1000 for size in (1, 512, 1024)}
    assert search(1000, dict(sweep), 1000)[1] <= search(1000, dict(sweep), None)[1]


def test_where_there_is_nothing_to_look_for() -> None:
    assert next_batch({1: False}) is None
    assert next_batch({LARGEST: True}) is None
    assert next_batch({}) == 1


@given(first=st.lists(st.booleans(), min_size=4, max_size=4))
def test_what_fits_above_what_does_not_is_not_looked_at(first: list[bool]) -> None:
    known = dict(zip((1, 8, 64, 512), first, strict=True))
    size = next_batch(known)
    over = min((each for each, fits in known.items() if not fits), default=None)
    assert size is None or over is None or size < over


def answered(plans: Sequence[Planned]) -> list[Record]:
    """Each case with its record, as a study's folder has them."""
    known = [record_of(planned.question.case, planned.question.request) for planned in plans]
    for record, planned in zip(known, plans, strict=True):
        object.__setattr__(record, "part", planned.question.cell.part)
        object.__setattr__(record, "column", planned.question.cell.column)
    return known


def test_a_search_asks_cases_of_a_part_of_its_own() -> None:
    plans = plans_of(study("[1, 64]"))
    searches = edge_searches(plans, [record_of(planned.question.case, planned.question.request) for planned in plans])
    assert [(each.base.question.cell.column, each.next()) for each in searches if each.next() is None] != []
    first, _ = edge_searches(plans, answered(plans))
    planned = first.next()
    assert planned is not None
    cell, request = planned.question.cell, planned.question.request
    assert (cell.part, cell.column, request.runs, request.warmups) == ("p edge", "a", 1, 0)
    assert planned.question.case.batch_size > 64


def test_a_case_that_ended_otherwise_ends_a_search_which_says_what_it_knows() -> None:
    plans = plans_of(study("[1, 64]"))
    first, _ = edge_searches(plans, answered(plans))
    planned = first.next()
    assert planned is not None
    broken = record_of(planned.question.case, planned.question.request, "error: killed")
    object.__setattr__(broken, "part", "p edge")
    object.__setattr__(broken, "column", "a")
    first.observe(broken)
    assert first.next() is None
    assert first.result == "the edge is not known: a case ended neither ok nor oom; a batch of 64 fits"
