"""Whether the server is well."""

from __future__ import annotations

from fastapi import APIRouter, Response

from inferometer.server.openapi import READING, operation
from inferometer.server.service import Service


def health_router(service: Service) -> APIRouter:
    """The routes over one service."""
    router = APIRouter(tags=["health"], default_response_class=Response)
    told = operation("/health", fails=(*READING, 503))

    @router.get("/ping", openapi_extra=told, summary="200 if the server is well, else 503")
    @router.get("/health", openapi_extra=told, summary="200 if the server is well, else 503")
    async def health() -> Response:
        await service.check_health()
        return Response()

    return router
