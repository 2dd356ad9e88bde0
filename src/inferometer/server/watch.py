"""The outermost layer: lays every request's trail, and tells at its end what became of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferometer.server.guard import OPEN_PATHS
from inferometer.server.trail import CURRENT, OTHER_ROUTE, Trail

LOG = logging.getLogger("inferometer.server.access")


class Watch:
    """Middleware around `app`. answered: called when a response begins; ended: when it is over. Both get the request's trail.

    routes: by which an address is known also where a request is refused before it has come to one.
    """

    def __init__(
        self, app: ASGIApp, routes: Iterable[Route], answered: Callable[[Trail], None], ended: Iterable[Callable[[Trail], None]]
    ) -> None:
        self._app = app
        self._routes = tuple(routes)
        self._plain = frozenset(route.path for route in self._routes if "{" not in route.path)
        self._answered = answered
        self._ended = tuple(ended)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trail = _trail(scope, self._route(scope))
        CURRENT.set(trail)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                trail.status = message["status"]
                trail.route = self._route(scope)
                self._answered(trail)
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", trail.request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            trail.ended = time.perf_counter()
            for each in self._ended:
                each(trail)

    def _route(self, scope: Scope) -> str:
        """Where it went; before it has gone anywhere, where it would go."""
        known = getattr(scope.get("route"), "path", None)
        if isinstance(known, str) and known:
            return known
        path: str = scope["path"]
        if path in self._plain:
            return path
        return next((route.path for route in self._routes if route.path_regex.match(path)), OTHER_ROUTE)


def log_request(trail: Trail) -> None:
    """A line for a request: numbers, and nothing that its sender wrote. Those that only look at the server are told at level DEBUG."""
    looks = trail.method in ("GET", "HEAD") and trail.route in OPEN_PATHS
    level = logging.DEBUG if looks else logging.WARNING if (trail.status or 500) >= 500 else logging.INFO
    if not LOG.isEnabledFor(level):
        return
    fields: dict[str, Any] = {
        "request_id": trail.request_id,
        "method": trail.method,
        "route": trail.route,
        "status": trail.status,
        "outcome": trail.outcome,
        "total_ms": round(trail.seconds * 1e3, 3),
        "validation_ms": _ms(trail.validation_s),
        "queue_ms": _ms(trail.queue_s),
        "first_token_ms": _ms(None if trail.first_token is None else trail.first_token - trail.began),
        "prompt_tokens": trail.prompt_tokens,
        "generated_tokens": trail.generated_tokens if trail.generations else None,
        "finish_reasons": [each.finish_reason for each in trail.generations] or None,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    LOG.log(level, "%s", _sentence(trail), extra={"fields": known})


def _sentence(trail: Trail) -> str:
    words = [trail.method, trail.route, str(trail.status), trail.outcome or "", f"{trail.seconds * 1e3:.1f} ms"]
    if trail.generations:
        words.append(f"{trail.prompt_tokens} + {trail.generated_tokens} tokens")
    return " ".join(word for word in words if word)


def _trail(scope: Scope, route: str) -> Trail:
    parent = {b"traceparent": "", b"tracestate": ""}
    for name, value in scope["headers"]:
        if name in parent:
            parent[name] = value.decode("latin-1")
    # A method is text that a client chose, too.
    method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH") else "OTHER"
    return Trail(method=method, route=route, parent=(parent[b"traceparent"], parent[b"tracestate"]))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
