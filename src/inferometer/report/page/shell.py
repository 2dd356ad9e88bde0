"""What every page has around its content: style, script, and a policy by which a browser lets nothing else run or load."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from inferometer import __version__
from inferometer.report.markup.html import escaped
from inferometer.report.page.section import Section, left_out


def document(title: str, summary: str, sections: Sequence[Section]) -> str:
    """A whole HTML document; `summary` is HTML that stands under its title."""
    style, script = (files("inferometer.report.page").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    own = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    policy = f"default-src 'none'; img-src data:; {own}; base-uri 'none'; form-action 'none'"
    links = "".join(f"<a href=#{section.slug}>{escaped(section.title)}</a>" for section in sections if section.content)
    return "".join(
        (
            '<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport content="width=device-width, initial-scale=1">\n',
            f'<meta http-equiv=Content-Security-Policy content="{policy}">\n<meta name=color-scheme content="light dark">\n',
            f'<link rel=icon href="data:,">\n<title>{escaped(title)}</title>\n<style>{style}</style>\n<main>\n',
            f"<header><h1>{escaped(title)}</h1></header>\n",
            summary,
            f"\n<nav aria-label=Sections>{links}</nav>\n",
            "\n".join(section.html() for section in sections if section.content),
            left_out(sections),
            f"\n<footer>Written by Inferometer {escaped(__version__)}.</footer>\n</main>\n",
            f"<div id=tip role=tooltip hidden></div>\n<script>{script}</script>\n",
        )
    )


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
