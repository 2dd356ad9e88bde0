"""A cohort on its way through many sweeps: what changes from one to the next is added, not gathered anew."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from inferometer.engine.facts import Facts, integers
from inferometer.schedule.sequence import Sequence
from inferometer.schedule.sweep import Cohort


class CohortRows:
    """The facts of a cohort's sweeps, the same as `Facts.of` its shares, with the sequences in order of `place`, equals as they come."""

    def __init__(self, cohort: Cohort, page_size: int, place: Callable[[Sequence], int]) -> None:
        self.cohort = cohort
        places = list(map(place, cohort.sequences))
        order = sorted(range(len(places)), key=places.__getitem__)
        self.sequences: tuple[Sequence, ...] = tuple([cohort.sequences[row] for row in order])
        rows = len(order)
        self._page_size = page_size
        self._offsets = integers(cohort.offsets)[order] if rows else integers(())
        self._seats = integers([sequence.seat for sequence in self.sequences])
        self._prompts = integers([sequence.prompt for sequence in self.sequences])
        self._token_ids = -1 - self._seats
        self._ones = np.ones(rows, dtype=np.int64)
        self._samples = np.ones(rows, dtype=np.bool_)
        self._pages = np.zeros(rows, dtype=np.int64)
        self._turn: int | None = None

    def facts(self, turn: int) -> Facts:
        """Those of the sweep at `turn`, which is the newest that the scheduler has planned."""
        positions = self._offsets + turn
        columns, within = np.divmod(positions, self._page_size)
        # A row's page is that of the turn before, unless its token begins another.
        new = np.flatnonzero(within == 0) if self._turn == turn - 1 else np.arange(len(positions))
        if len(new):
            self._pages[new] = [self.sequences[row].pages[column] for row, column in zip(new.tolist(), columns[new].tolist(), strict=True)]
        self._turn = turn
        return Facts(
            seats=self._seats,
            starts=positions,
            counts=self._ones,
            prompts=self._prompts,
            samples=self._samples,
            token_ids=self._token_ids,
            columns=columns,
            widths=self._ones,
            pages=self._pages.copy(),
        )
