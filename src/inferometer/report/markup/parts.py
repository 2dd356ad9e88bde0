"""The parts of a report, and how they are written in Markdown and in reStructuredText."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from inferometer.report.markup.markdown import table
from inferometer.report.markup.rst import escaped, grid_table

Format = Literal["md", "rst"]
# Underlines of headings in reStructuredText, from the highest level down.
_LINES = "=-~^"


@dataclass(frozen=True, slots=True)
class Heading:
    """level 1 is the title."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Words without mark-up."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of lines without mark-up."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """A command, shown as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """A picture at a path relative to the report."""

    path: str
    title: str


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: column headings, then rows, all of one length. A heading that equals its left neighbour's spans both where the format can.

    Raises ValueError for rows of different lengths.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.head) for row in self.rows):
            raise ValueError(f"every row of the table needs {len(self.head)} cells")

    @property
    def spans(self) -> tuple[tuple[str, int], ...]:
        """The headings with the number of columns that each is over; an empty one is over one."""
        found: list[tuple[str, int]] = []
        for text, alike in groupby(self.head):
            count = len(list(alike))
            found += [(text, 1)] * count if not text else [(text, count)]
        return tuple(found)


Part = Heading | Paragraph | Bullets | Code | Image | Grid


def written(parts: Iterable[Part], form: Format) -> str:
    """The report as one text with a final line break."""
    write = _markdown if form == "md" else _restructured
    return "\n\n".join(write(part) for part in parts) + "\n"


def _markdown(part: Part) -> str:
    if isinstance(part, Heading):
        return "#" * part.level + " " + _plain(part.text)
    if isinstance(part, Paragraph):
        return _plain(part.text)
    if isinstance(part, Bullets):
        return "\n".join(f"- {_plain(item)}" for item in part.items)
    if isinstance(part, Code):
        return f"```bash\n{part.text}\n```"
    if isinstance(part, Image):
        return f"![{_plain(part.title)}]({part.path})"
    return table(part.head, part.rows)


def _restructured(part: Part) -> str:
    if isinstance(part, Heading):
        text = escaped(part.text)
        return f"{text}\n{_LINES[min(part.level, len(_LINES)) - 1] * len(text)}"
    if isinstance(part, Paragraph):
        return escaped(part.text)
    if isinstance(part, Bullets):
        return "\n".join(f"- {escaped(item)}" for item in part.items)
    if isinstance(part, Code):
        return ".. code-block:: bash\n\n" + "\n".join(f"   {line}" for line in part.text.splitlines())
    if isinstance(part, Image):
        return f".. image:: {part.path}\n   :alt: {escaped(part.title)}"
    return grid_table(part.spans, part.rows)


def bold(text: str) -> str:
    """Text that both formats show in bold, for a cell."""
    return f"**{text}**"


def _plain(text: str) -> str:
    """Words of others (a driver's message, a path) on one line, with nothing in them that Markdown would read as mark-up or HTML.

    An underscore within a word and a bracket that no link follows mean themselves.
    """
    return re.sub(r"([\\`*<]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|&(?=#?\w+;))", r"\\\1", " ".join(text.split()))


def joined(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
