"""What every request passes first: the key, and the promise that whatever happens is answered in JSON."""

from __future__ import annotations

import hmac
import logging

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferometer.server.answers import error_response
from inferometer.server.failures import ApiError, ClientGoneError

LOG = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/", "/health", "/ping", "/info", "/metrics", "/status", "/docs", "/api-doc/openapi.json"})
"""What may be read (GET) without the key: nothing there runs the model or tells what others asked."""


class Guard:
    """Middleware around `app`. api_key: None lets everybody in."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._key = None if api_key is None else api_key.encode("utf-8")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            if not self._may_enter(scope):
                raise ApiError(401, "authentication", "The API key is missing or wrong", headers={"WWW-Authenticate": "Bearer"})
            await self._app(scope, receive, watched)
        except ApiError as error:
            await error_response(error, scope["path"])(scope, receive, send)
        except ClientGoneError:
            pass
        except Exception as error:
            # Without the message, which may hold what the client sent.
            LOG.error("%s %s failed: %s", scope["method"], scope["path"], type(error).__name__, exc_info=_places(error))
            if not started:
                await error_response(ApiError(500, "internal", "Internal error"), scope["path"])(scope, receive, send)

    def _may_enter(self, scope: Scope) -> bool:
        if self._key is None or (scope["method"] in ("GET", "HEAD") and scope["path"] in OPEN_PATHS):
            return True
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode("latin-1"), self._key)
        return right and scheme.lower() == "bearer"


def _places(error: Exception) -> BaseException:
    """The error with its places in the code, and without its words."""
    return RuntimeError(type(error).__name__).with_traceback(error.__traceback__)
