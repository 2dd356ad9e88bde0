"""The page that a browser gets at `/`: one file, that loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from fastapi import Response


def wants_page(accept: str) -> bool:
    """Whether an Accept header is a browser's: it names HTML. `*/*` alone, as curl and health checks send, is not."""
    return any(part.partition(";")[0].strip().lower() == "text/html" for part in accept.split(","))


class StatusPage:
    """The page with the headers that keep it to itself: no script but its own runs, and nothing is fetched from elsewhere."""

    def __init__(self) -> None:
        self._page = files("inferometer.server").joinpath("status_page.html").read_bytes()
        policy = {
            "default-src": "'none'",
            "connect-src": "'self'",
            "style-src": self._hash("style"),
            "script-src": self._hash("script"),
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        self._headers = {
            "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "cache-control": "no-cache",
            "vary": "accept",
        }

    def response(self) -> Response:
        """The page."""
        return Response(self._page, headers=self._headers, media_type="text/html; charset=utf-8")

    def _hash(self, element: str) -> str:
        content = re.search(rb"<%s>(.*?)</%s>" % (element.encode(), element.encode()), self._page, re.DOTALL)
        assert content is not None
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.group(1)).digest()).decode()}'"
