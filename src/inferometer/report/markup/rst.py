"""reStructuredText: grid tables whose headings may span columns."""

from __future__ import annotations

import re
from collections.abc import Sequence


def grid_table(head: Sequence[tuple[str, int]], rows: Sequence[Sequence[str]]) -> str:
    """A grid table; `head` gives each heading with the number of columns that it is over. Without a final line break.

    A single row of headings, set off by "=". Raises ValueError for a row of another length than the headings are over.
    """
    count = sum(span for _, span in head)
    lines = [[_cell(cell) for cell in row] for row in rows]
    if any(len(line) != count for line in lines):
        raise ValueError(f"every row of the table needs {count} cells")
    headings = [(_cell(text), span) for text, span in head]
    widths = [max((len(line[column]) for line in lines), default=0) for column in range(count)]
    start = 0
    for text, span in headings:
        # Columns under one heading take up two spaces and a bar more than their texts, each but one.
        room = sum(widths[start : start + span]) + 3 * (span - 1)
        widths[start + span - 1] += max(0, len(text) - room)
        start += span
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    drawn = [_top(headings, widths), _headings(headings, widths), rule.replace("-", "=")]
    for line in lines:
        drawn += ["|" + "|".join(f" {cell.ljust(width)} " for cell, width in zip(line, widths, strict=True)) + "|", rule]
    return "\n".join(drawn)


def escaped(text: str) -> str:
    """Words of others on one line, with nothing in them that would be read as mark-up; an underscore within a word is none."""
    return re.sub(r"([\\`*|]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))


def _cell(text: str) -> str:
    """Bold stays bold; a bar with space around it is not mark-up."""
    plain = " ".join(text.split())
    inner = re.fullmatch(r"\*\*(.*)\*\*", plain)
    return f"**{_inner(inner[1])}**" if inner else _inner(plain)


def _inner(text: str) -> str:
    # "-" and "+" alone would begin a list.
    return "\\" + text if text in ("-", "+", "*") else re.sub(r"([\\`*]|(?<!\w)_|_(?!\w))", r"\\\1", text)


def _room(headings: Sequence[tuple[str, int]], widths: Sequence[int]) -> list[int]:
    rooms, start = [], 0
    for _, span in headings:
        rooms.append(sum(widths[start : start + span]) + 3 * (span - 1))
        start += span
    return rooms


def _top(headings: Sequence[tuple[str, int]], widths: Sequence[int]) -> str:
    return "+" + "+".join("-" * (room + 2) for room in _room(headings, widths)) + "+"


def _headings(headings: Sequence[tuple[str, int]], widths: Sequence[int]) -> str:
    cells = [f" {text.ljust(room)} " for (text, _), room in zip(headings, _room(headings, widths), strict=True)]
    return "|" + "|".join(cells) + "|"
