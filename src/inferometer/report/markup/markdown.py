"""Markdown tables whose columns line up as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_ELEMENT: Final = re.compile(r"<(?=[A-Za-z/!?])")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, every column as wide as its widest cell; without a final line break.

    A bar or a line break within a cell would end it, and what begins as an element of HTML would be one: they are written as "\\|", a
    space and "\\<". Raises ValueError for a row of another length than the header.
    """
    lines = [[_cell(cell) for cell in row] for row in (header, *rows)]
    if any(len(line) != len(header) for line in lines):
        raise ValueError(f"every row of the table needs {len(header)} cells")
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def _cell(text: str) -> str:
    return " ".join(_ELEMENT.sub(r"\\<", text.replace("|", "\\|")).split("\n"))
