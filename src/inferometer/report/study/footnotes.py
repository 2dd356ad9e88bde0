"""What the cells of a table have to say beside their figures: numbered notes, each given once, and where the figures are from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from inferometer.bench.records.record import Record
from inferometer.report.records.beyond_bound import beyond_bound
from inferometer.report.study.published_figures import Published


@dataclass(slots=True)
class Footnotes:
    """Collects what the cells of one table have to say beside their word.

    Texts that differ only in their numbers (each out-of-memory message has its own bytes) are one note, which shows the first.
    published: the publications that figures are from. compared: whether some cell has a quotient in brackets. beyond: the records of
    cells that show a share of a bound above 100 %.
    """

    _notes: dict[str, int] = field(default_factory=dict)
    _texts: list[str] = field(default_factory=list)
    _cells: list[list[str]] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    compared: bool = False
    beyond: list[Record] = field(default_factory=list)

    def mark(self, word: str, text: str, cell: str) -> str:
        """The word with the number of its note; `cell` says where it stands."""
        key = re.sub(r"\d[\d.,]*", "0", text)
        if key not in self._notes:
            self._notes[key] = len(self._texts)
            self._texts.append(" ".join(text.split()))
            self._cells.append([])
        number = self._notes[key]
        if cell not in self._cells[number]:
            self._cells[number].append(cell)
        return f"{word} [{number + 1}]".strip()

    def lines(self) -> tuple[str, ...]:
        """The notes in order, each with where it was first met; last what is to be said of shares above 100 %."""
        found = []
        for number, (text, cells) in enumerate(zip(self._texts, self._cells, strict=True)):
            where = cells[0] if len(cells) == 1 else f"{cells[0]}, the first of {len(cells)} cells alike"
            found.append(f"[{number + 1}] {text.rstrip('.')} ({where}).")
        return (*found, *beyond_bound(self.beyond))
