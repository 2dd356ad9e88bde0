"""How many requests of a batch an admission has running at a time."""

from __future__ import annotations

from collections.abc import Iterable

from inferometer.schedule.admission import Admission
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.groups import Diagonal, Row, Zigzag


def residents(admission: Admission, rows: int) -> tuple[int, int]:
    """How many of `rows` requests must fit for the admission to be what it says, and how many it ever has running.

    Groups whose number was asked for are all there at once, or the case is not the one that was asked for.
    Raises TypeError for an admission that no case runs under.
    """
    match admission:
        case Zigzag(size, groups) | Diagonal(size, groups):
            together = rows if groups is None else min(rows, size * groups)
            return min(rows, size) if groups is None else together, together
        case Row(size):
            return min(rows, size), min(rows, size)
        case Continuous():
            return 1, rows
        case _:
            raise TypeError(f"no case runs under {admission!r}")


def rows_of_sweeps(admission: Admission, most: int) -> Iterable[int]:
    """How many rows may decode together under an admission that has up to `most` running."""
    match admission:
        case Diagonal(size):
            return (*range(size, most, size), most)
        case Continuous():
            return range(1, most + 1)
        case _:
            return (most,)
