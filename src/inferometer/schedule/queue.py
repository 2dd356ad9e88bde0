"""The queue: requests that wait for a seat and pages, in order of arrival."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from operator import attrgetter

from inferometer.schedule.sequence import Sequence

_ARRIVAL = attrgetter("arrival")


class Queue:
    """Sequences in order of arrival. One that comes back waits before all that arrived after it, which is the front or near it."""

    def __init__(self) -> None:
        self._new: OrderedDict[int, Sequence] = OrderedDict()  # by request id
        self._returned: list[Sequence] = []  # few at any time: they have been running

    def __len__(self) -> int:
        return len(self._new) + len(self._returned)

    def __iter__(self) -> Iterator[Sequence]:
        if not self._returned:
            return iter(self._new.values())
        return merge(self._returned, self._new.values(), key=_ARRIVAL)

    def append(self, sequence: Sequence) -> None:
        """Queues one that arrived after all others."""
        self._new[sequence.request.id] = sequence

    def give_back(self, sequence: Sequence) -> None:
        """Queues one that was running."""
        insort(self._returned, sequence, key=_ARRIVAL)

    def remove(self, sequence: Sequence) -> None:
        """Takes one out. Raises ValueError if it does not wait."""
        if self._new.pop(sequence.request.id, None) is None:
            self._returned.remove(sequence)

    def at(self, place: int) -> Sequence | None:
        """The one that so many wait before; None beyond the end."""
        return next(islice(self, place, None) if place else iter(self), None)

    def first(self, count: int) -> list[Sequence]:
        """Up to `count` from the front."""
        return list(islice(self, count))
