"""The diagonal order where weights come in with every sweep: as many prompts beside them as the link's time has room for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_executor import FakeExecutor, make_request
from inferometer.schedule.groups import Diagonal


def prompts_of(run: FakeExecutor) -> list[int]:
    """Prompt tokens of each sweep."""
    lengths = {id_: len(truth.sequence.request.prompt_token_ids) for id_, truth in run.truths.items()}
    return [sum(count for id_, start, count in sweep if start < lengths[id_]) for sweep in run.sweeps]


def job(admission: Diagonal, pages: int, requests: int, prompt: int = 512, new: int = 32) -> FakeExecutor:
    run = FakeExecutor(admission, pages=pages, sweep_tokens=12000, max_batch=1024, lookahead=1, prefix_caching=False, strict=False)
    run.add(*(make_request(id_, prompt, new) for id_ in range(requests)))
    run.run()
    run.check_finished()
    assert run.scheduler.preemptions == 0
    return run


def test_a_sweep_admits_as_many_groups_as_the_links_time_has_room_for() -> None:
    """opt-6.7b, 128 requests at most in flight: the link leaves time for 22 prompts of 512, in groups of four for 20."""
    run = job(Diagonal(4, 32, prompt_tokens=11600), 128 * 34, 1024)
    tokens = prompts_of(run)
    assert tokens[:7] == [10240] * 6 + [8 * 512]
    assert max(tokens) == 10240
    # As each generates 32 tokens, 128 in flight are 4 tokens of a request in a sweep: one sweep more only for what the first began late.
    assert len(run.sweeps) == 1024 * 32 // 128 + 6
    assert max(len(sweep) for sweep in run.sweeps) == 128


@pytest.mark.parametrize("prompt_tokens", [1, 511, 4096, 8191])
def test_one_group_enters_however_little_time_there_is(prompt_tokens: int) -> None:
    run = job(Diagonal(8, None, prompt_tokens), 10**5, 64)
    assert prompts_of(run)[:8] == [4096] * 8


def test_without_a_link_one_group_enters_a_sweep() -> None:
    assert prompts_of(job(Diagonal(4), 10**5, 32))[:8] == [2048] * 8


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_nobody_lacks_pages_and_no_sweep_runs_more_prompts_than_it_may(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 70), st.integers(1, 30)), min_size=1, max_size=20))
    largest = max(-(-(prompt + new - 1) // page_size) for prompt, new in shapes)
    size, most = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 200))
    groups = data.draw(st.none() | st.integers(1, 5))
    sweep_tokens, seats = data.draw(st.sampled_from([8, 32, 128, 1000])), data.draw(st.integers(1, 12))
    run = FakeExecutor(
        Diagonal(size, groups, most),
        pages=largest + data.draw(st.integers(0, 6 * largest)),
        page_size=page_size,
        sweep_tokens=sweep_tokens,
        max_batch=seats,
        lookahead=data.draw(st.integers(0, 1)),
        prefix_caching=False,
    )
    run.add(*(make_request(id_, prompt, new, end_every=id_ % 3 * 4) for id_, (prompt, new) in enumerate(shapes)))
    run.run()
    run.check_finished()
    assert run.scheduler.preemptions == 0
    group = max(sum(prompt for prompt, _ in shapes[i : i + size]) for i in range(len(shapes)))
    assert max(prompts_of(run)) <= max(most, group)


@settings(max_examples=20, deadline=None)
@given(prompt=st.integers(1, 40), new=st.integers(2, 16), size=st.integers(1, 3), more=st.integers(1, 8))
def test_memory_is_what_the_papers_formula_says(prompt: int, new: int, size: int, more: int) -> None:
    """Diagonal of FlexGen's appendix A.2.1: b (2 s + n) (n - 1) / (2 n) tokens of keys and values for b = n groups in flight, which are
    those of the groups that decode; the group that enters brings its prompt. A page is a token, so that nothing is rounded."""
    groups, pages = new + more, size * new * (prompt + new)
    run = FakeExecutor(Diagonal(size), pages=pages, page_size=1, sweep_tokens=10**4, max_batch=1000, prefix_caching=False, strict=False)
    run.add(*(make_request(id_, prompt, new) for id_ in range(size * groups)))
    run.run()
    run.check_finished()
    formula = size * new * (2 * prompt + new) * (new - 1) // (2 * new)
    decoding = [sum(start + 1 for _, start, _ in sweep if start >= prompt) for sweep in run.sweeps]
    assert max(decoding) == formula
    assert max(run.used) == formula + size * prompt
    # Each sweep is one pass through the layers, in which every group in flight goes on by a token.
    assert len(run.sweeps) == groups + new - 1
    assert all(len({id_ // size for id_, _, _ in sweep}) == min(i + 1, new, len(run.sweeps) - i) for i, sweep in enumerate(run.sweeps))
