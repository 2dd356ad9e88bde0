"""What there is to ask for, as a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Response

from inferometer.server.docs_page import docs_page
from inferometer.server.openapi import operation
from inferometer.server.page import Page


def docs_router(document: Callable[[], dict[str, Any]]) -> APIRouter:
    """The route over the OpenAPI document, which is asked for when somebody first reads the page."""
    router = APIRouter(tags=["status"], default_response_class=Response)
    made: list[Page] = []

    @router.get("/docs", openapi_extra=operation("/docs", media="text/html"), summary="This page")
    async def docs() -> Response:
        if not made:
            made.append(docs_page(document()))
        return made[0].response()

    return router
