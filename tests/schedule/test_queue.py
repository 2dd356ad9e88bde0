"""The queue keeps the order of arrival, for those that come back as well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_executor import make_request
from inferometer.schedule.queue import Queue
from inferometer.schedule.sequence import Sequence


def sequences(count: int) -> list[Sequence]:
    return [Sequence(make_request(100 - i, 4, 4), arrival=i, most_pages=2, digests=[]) for i in range(count)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=40))
def test_whoever_waits_waits_in_order_of_arrival(moves: list[tuple[bool, int]]) -> None:
    queue, everyone = Queue(), sequences(12)
    running: list[Sequence] = []
    for sequence in everyone:
        queue.append(sequence)
    for goes, which in moves:
        if goes and len(queue):
            gone = queue.at(which % len(queue))
            assert gone is not None
            queue.remove(gone)
            running.append(gone)
        elif running:
            queue.give_back(running.pop(which % len(running)))
        waiting = [sequence for sequence in everyone if sequence not in running]
        assert list(queue) == waiting
        assert len(queue) == len(waiting)
        assert queue.first(3) == waiting[:3]
        assert [queue.at(i) for i in range(13)] == [*waiting, *[None] * (13 - len(waiting))]


def test_one_that_does_not_wait_cannot_be_taken_out() -> None:
    with pytest.raises(ValueError, match="not in list"):
        Queue().remove(sequences(1)[0])
