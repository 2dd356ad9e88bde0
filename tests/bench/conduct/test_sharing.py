"""Which cases of a row are under way together."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from inferometer.bench.conduct.sharing import SHARE, together


@given(st.lists(st.none() | st.integers(0, 100), max_size=8), st.none() | st.integers(0, 200))
def test_neighbours_that_fit_and_nobody_twice(needs: list[int | None], room: int | None) -> None:
    groups = together(needs, room)
    assert [position for group in groups for position in group] == list(range(len(needs)))
    for group in groups:
        if len(group) > 1:
            known = [need for position in group if (need := needs[position]) is not None]
            assert len(known) == len(group)
            assert room is not None
            assert sum(known) <= SHARE * room
    for group, following in pairwise(groups):
        sums = [needs[position] for position in (*group, following[0])]
        known = [need for need in sums if need is not None]
        assert room is None or len(known) < len(sums) or sum(known) > SHARE * room, "a group is as large as it can be"


def test_a_share_is_left_free() -> None:
    assert together([45, 45], 100) == [[0, 1]]
    assert together([45, 46], 100) == [[0], [1]]
    assert together([45, 46, 40], 100) == [[0], [1, 2]]


def test_what_needs_nothing_joins_nothing_unknown() -> None:
    assert together([None, 0, 0], 0) == [[0], [1, 2]]
