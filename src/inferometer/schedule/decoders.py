"""The sequences that decode: all go on together, so that what a sweep changes is looked up and not searched for."""

from __future__ import annotations

from collections.abc import Iterator

from inferometer.schedule.sequence import Sequence, Turns
from inferometer.schedule.sweep import Cohort


class Decoders:
    """Sequences in the order in which they came to decode. Their counts grow with every `advance`, which touches none of them.

    What comes up once in many sweeps is kept by the turn at which it does: the beginning of a page, which is the same of `page_size` turns
    again and again, and the limit.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._turns = Turns()
        self._members: dict[int, Sequence] = {}  # by request id, like those below
        self._beginning: list[dict[int, Sequence]] = [{} for _ in range(page_size)]
        self._ending: dict[int, dict[int, Sequence]] = {}
        self._cohort: Cohort | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._members.values())

    @property
    def turn(self) -> int:
        """How often they have gone on."""
        return self._turns.count

    @property
    def cohort(self) -> Cohort:
        """All of them as a sweep knows them: the same object until somebody comes or goes."""
        if self._cohort is None:
            members = tuple(self._members.values())
            self._cohort = Cohort(members, tuple([one.offset - 1 for one in members]))
        return self._cohort

    @property
    def beginning(self) -> list[Sequence]:
        """Those whose next token is the first of a page."""
        return list(self._beginning[self.turn % self._page_size].values())

    @property
    def beginners(self) -> int:
        """How many those are."""
        return len(self._beginning[self.turn % self._page_size])

    def join(self, sequence: Sequence) -> None:
        """One all of whose tokens are computed, so that the sweep samples its next, decodes from the next sweep on."""
        self._cohort = None
        sequence.follow(self._turns)
        key, offset = sequence.request.id, sequence.offset
        self._members[key] = sequence
        self._beginning[-offset % self._page_size][key] = sequence
        end = _last_turn(sequence)
        if end not in self._ending:
            self._ending[end] = {}
        self._ending[end][key] = sequence

    def leave(self, sequence: Sequence) -> None:
        """One of them decodes no longer."""
        self._cohort = None
        key, end = sequence.request.id, _last_turn(sequence)
        # Whatever is not there: its last turn has come, or an interrupt came while it joined.
        self._members.pop(key, None)
        self._beginning[-sequence.offset % self._page_size].pop(key, None)
        ending = self._ending.get(end)
        if ending is not None:
            ending.pop(key, None)
            if not ending:
                del self._ending[end]
        sequence.halt()

    def advance(self) -> list[Sequence]:
        """All go on by a token. Returns those that thereby launch the last one they may."""
        self._turns.count += 1
        return list(self._ending.pop(self.turn, {}).values())


def _last_turn(sequence: Sequence) -> int:
    """The turn in which it launches the last token that it may."""
    return sequence.longest - 1 - sequence.offset
