"""The parts of a report as HTML: the third form beside Markdown and reStructuredText."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferometer.report.markup.html import escaped, scrolling
from inferometer.report.markup.parts import Bullets, Code, Grid, Heading, Image, Paragraph, Part
from inferometer.report.page.section import Section
from inferometer.report.page.shell import document


def html_of(parts: Iterable[Part], *, name: str) -> str:
    """Parts within a section of a page: headings start at its third level; name: what its tables are called. Images are left out."""
    return "".join(_html(part, name) for part in parts)


def page_of(parts: Sequence[Part]) -> str:
    """A page of its own: the first heading is its title, each of the second level begins a section."""
    title = next(part.text for part in parts if isinstance(part, Heading))
    sections: list[tuple[str, list[Part]]] = [("", [])]
    for part in parts[1:]:
        if isinstance(part, Heading) and part.level == 2:
            sections.append((part.text, []))
        else:
            sections[-1][1].append(part)
    made = [
        Section(slug=f"part{place}", title=name, content=html_of(each, name=name)) for place, (name, each) in enumerate(sections) if name
    ]
    return document(title, html_of(sections[0][1], name=title), made)


def _html(part: Part, name: str) -> str:
    if isinstance(part, Heading):
        level = min(max(part.level, 3), 6)
        return f"<h{level}>{escaped(part.text)}</h{level}>"
    if isinstance(part, Paragraph):
        return f"<p>{escaped(part.text)}</p>"
    if isinstance(part, Bullets):
        return f"<ul>{''.join(f'<li>{escaped(item)}' for item in part.items)}</ul>"
    if isinstance(part, Code):
        return f"{scrolling('Command')}<pre>{escaped(part.text)}</pre></div>"
    return "" if isinstance(part, Image) else _grid(part, name)


def _grid(grid: Grid, name: str) -> str:
    head = "".join(f"<th scope=col{f' colspan={span}' if span > 1 else ''}>{_cell(text)}" for text, span in grid.spans)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}' for cell in row)}" for row in grid.rows)
    return f"{scrolling(name)}<table><thead><tr>{head}<tbody>{body}</table></div>"


def _cell(text: str) -> str:
    """The one mark-up that cells have is bold."""
    if text.startswith("**") and text.endswith("**") and len(text) > 4:
        return f"<b>{escaped(text[2:-2])}</b>"
    return escaped(text)
