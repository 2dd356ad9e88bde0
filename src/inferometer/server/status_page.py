"""The page that a browser gets at `/`."""

from __future__ import annotations

from importlib.resources import files

from inferometer.server.page import Page


def wants_page(accept: str) -> bool:
    """Whether an Accept header is a browser's: it names HTML. `*/*` alone, as curl and health checks send, is not."""
    return any(part.partition(";")[0].strip().lower() == "text/html" for part in accept.split(","))


def status_page() -> Page:
    """The page; it asks `/status` for what it shows."""
    return Page(files("inferometer.server").joinpath("status_page.html").read_bytes())
