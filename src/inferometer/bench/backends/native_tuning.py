"""Launches of the native backend's linear maps, measured for the rows of a case before it is timed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Final

from inferometer.engine.llm import LLM
from inferometer.engine.tuning import launches_known
from inferometer.kernels.skinny_choice import bucket
from inferometer.kernels.skinny_launch import MOST_ROWS

_SAID_S: Final = 3.0
"""What takes longer is said."""


class NativeTuning:
    """What has been measured in this process. seconds: after which no launch for a number of rows is measured any more, where none is on
    file: what is left is the table's.
    """

    def __init__(self, llm: LLM, seconds: float) -> None:
        self._llm = llm
        self._seconds = seconds
        self._done: set[int] = set()
        llm.tune((), seconds=0)  # what is on file

    @property
    def measured(self) -> int:
        """For how many numbers of rows launches were measured, or found on file."""
        return len(self._done)

    def tune(self, sizes: Iterable[int]) -> None:
        """Has launches measured for sweeps of so many rows, once in this process, unless they are on file."""
        wanted = {bucket(rows) for rows in sizes if 0 < rows <= MOST_ROWS} - self._done
        if not wanted:
            return
        self._done |= wanted
        begin = time.monotonic()
        measured = self._llm.tune(sorted(wanted), seconds=self._seconds)
        took = time.monotonic() - begin
        if measured and took > _SAID_S:
            rows = " and ".join(map(str, sorted(wanted)))
            print(
                f"inferometer: {measured} launches for {rows} rows of {self._llm.spec.name} were measured in {took:.0f} s; they are kept "
                "for this kind of GPU",
                file=sys.stderr,
                flush=True,
            )

    def known(self, rows: int) -> dict[str, int] | None:
        """Of the linear maps' sizes in a sweep of so many rows, how many there are, and of how many the launch has been measured; None
        where nothing is chosen.
        """
        found = launches_known(self._llm.model, rows)
        return None if found is None else {"measured": found[0], "maps": found[1]}
