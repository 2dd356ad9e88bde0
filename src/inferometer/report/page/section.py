"""A section of the page: its content, or the one line that says why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from inferometer.report.markup.html import escaped, folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """`slug` is its place in the address, `about` a sentence on how to read it; missing: why `content` is empty."""

    slug: str
    title: str
    about: str = ""
    content: str = ""
    missing: str = ""

    def html(self) -> str:
        """The section as it stands in the page, if it has content."""
        about = f"<p class=about>{escaped(self.about)}</p>" if self.about else ""
        return f"<section id={self.slug}><h2>{escaped(self.title)}</h2>{about}{self.content}</section>"


def left_out(sections: Iterable[Section]) -> str:
    """A line for each section without content, together; "" where all have some."""
    lines = "".join(f"<li id={each.slug}><b>{escaped(each.title)}</b>: {escaped(each.missing)}" for each in sections if not each.content)
    return f"<section id=left-out class=absent><h2>Left out</h2><ul>{lines}</ul></section>" if lines else ""


def figure(caption: str, image: str, *, note: str = "") -> str:
    """An image under its caption."""
    small = f" <small>{escaped(note)}</small>" if note else ""
    return f"<figure><figcaption>{escaped(caption)}{small}</figcaption>{image}</figure>"


def figures(each: Iterable[str]) -> str:
    """Figures side by side, as many as the screen is wide."""
    return f"<div class=figures>{''.join(each)}</div>"


@dataclass(frozen=True, slots=True)
class Detail:
    """How much a page can say of each case and stay small enough to send: with many cases, the one large table has what the small
    tables beside the figures would repeat.
    """

    cases: int

    @property
    def tables(self) -> bool:
        """Whether each figure has a table of its own."""
        return self.cases <= 300

    @property
    def workloads(self) -> int:
        """How many workloads have charts: more are no overview."""
        return 24 if self.tables else 12

    @property
    def spreads(self) -> bool:
        """Whether marks show their spread."""
        return self.cases <= 300

    def folded(self, summary: str, content: Callable[[], str]) -> str:
        """A table beside a figure, or where its values are instead."""
        return folded(summary, content()) if self.tables else ""
