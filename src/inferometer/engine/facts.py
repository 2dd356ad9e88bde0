"""What the host knows of the sequences of a sweep, as arrays."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.schedule.sweep import Share

Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """The shares of a sweep, one after another.

    seats, starts, counts: int64 (shares,), as in Share. prompts: int64 (shares,), tokens of each prompt. samples: bool (shares,).
    token_ids: int64 (tokens,), where negative the newest token of seat -1 - token_id.
    columns, widths: int64 (shares,), where in the sequence's row of the block table begins what it may not hold yet, and how many pages
    that is up to the last one that the share writes to. pages: int64 (entries,), those pages.
    """

    seats: Integers
    starts: Integers
    counts: Integers
    prompts: Integers
    samples: NDArray[np.bool_]
    token_ids: Integers
    columns: Integers
    widths: Integers
    pages: Integers

    def __len__(self) -> int:
        return len(self.seats)

    @property
    def contexts(self) -> Integers:
        """Tokens of each sequence once the sweep has run."""
        return self.starts + self.counts

    @classmethod
    def of(cls, shares: Many[Share], page_size: int) -> Facts:
        """Those of any shares."""
        token_ids: list[int] = []
        columns: list[int] = []
        widths: list[int] = []
        pages: list[int] = []
        for share in shares:
            sequence, start = share.sequence, share.start
            stop = start + share.count
            if share.decodes:
                assert sequence.seat is not None
                token_ids.append(-1 - sequence.seat)
            else:
                token_ids += sequence.tokens[start:stop]
            # Of a sequence that has just taken its seat all pages, else those that the share writes to.
            first, end = 0 if share.enters else start // page_size, -(-stop // page_size)
            columns.append(first)
            widths.append(end - first)
            pages += sequence.pages[first:end]
        return cls(
            seats=integers([share.sequence.seat for share in shares]),
            starts=integers([share.start for share in shares]),
            counts=integers([share.count for share in shares]),
            prompts=integers([share.sequence.prompt for share in shares]),
            samples=np.array([share.samples for share in shares], dtype=np.bool_),
            token_ids=integers(token_ids),
            columns=integers(columns),
            widths=integers(widths),
            pages=integers(pages),
        )

    def followed_by(self, others: Facts) -> Facts:
        """These shares and then `others`."""
        return Facts(*(np.concatenate((getattr(self, field.name), getattr(others, field.name))) for field in fields(self)))


def integers(values: Many[int | None]) -> Integers:
    """`values`, none of which is None, as an array."""
    return np.array(values, dtype=np.int64)
