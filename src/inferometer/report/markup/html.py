"""Pieces of HTML. Whatever is not ours goes through `escaped`: names of models and what a failed case said are anybody's words."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

# No document may hold these, and a browser would drop them in silence.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# They turn the reading direction of what follows, also of our own words.
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")


def escaped(words: object) -> str:
    """Text that is text within an element and within a quoted attribute; control characters and reversals become U+FFFD."""
    return html.escape(_TURNS.sub("\ufffd", _CONTROLS.sub("\ufffd", str(words))), quote=True)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str) -> str:
    """A table of text, its first column the rows' names; caption is its accessible name."""
    # The end tags that HTML lets one leave out are a fifth of a large table.
    head = "".join(f"<th scope=col>{escaped(cell)}" for cell in header)
    body = "".join(f"<tr><th scope=row>{escaped(first)}{''.join(f'<td>{escaped(cell)}' for cell in rest)}" for first, *rest in rows)
    return f"{scrolling(caption)}<table><thead><tr>{head}<tbody>{body}</table></div>"


def scrolling(caption: str) -> str:
    """The start of a box that scrolls sideways, by keys too, where its content is wider than the screen."""
    return f'<div class=wide role=region tabindex=0 aria-label="{escaped(caption)}">'


def folded(summary: str, content: str) -> str:
    """Content that shows when asked for."""
    return f"<details><summary>{escaped(summary)}</summary>{content}</details>"
