"""A page for browsers: one document, that loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import re

from fastapi import Response


class Page:
    """A page with the headers that keep it to itself: no script and no style but its own, and nothing is fetched from elsewhere.

    content: the whole document, with at most one style and one script.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
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
        return Response(self._content, headers=self._headers, media_type="text/html; charset=utf-8")

    def _hash(self, element: str) -> str:
        content = re.search(rb"<%s>(.*?)</%s>" % (element.encode(), element.encode()), self._content, re.DOTALL)
        if content is None:
            return "'none'"
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.group(1)).digest()).decode()}'"
