"""HEAD, which every address that can be read answers."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadAsGet:
    """Middleware around `app`, to which HEAD is GET: whoever writes to the connection leaves the body out. Balancers ask for health so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # a copy: the connection still has to know
        await self._app(scope, receive, send)
