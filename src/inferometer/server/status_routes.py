"""What the server tells of itself: metrics, its state as JSON, and a page for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from inferometer import __version__
from inferometer.model.parameters import parameter_count
from inferometer.server.answers import json_response
from inferometer.server.failures import ApiError
from inferometer.server.observatory import Observatory
from inferometer.server.openapi import READING, operation
from inferometer.server.service import Service
from inferometer.server.status_page import status_page, wants_page


def status_router(service: Service, observatory: Observatory) -> APIRouter:
    """The routes over one service and what watches it."""
    router = APIRouter(tags=["status"], default_response_class=Response)
    page = status_page()

    told = operation("/", fails=(*READING, 503))

    @router.get("/", openapi_extra=told, summary="A page for browsers; for others 200 if the server is well, else 503")
    async def root(request: Request) -> Response:
        if wants_page(request.headers.get("accept", "")):
            return page.response()
        await service.check_health()
        return Response(headers={"vary": "accept"})

    @router.get("/metrics", openapi_extra=operation("/metrics", media="text/plain"), summary="Metrics, as Prometheus reads them")
    async def metrics() -> Response:
        return Response(await observatory.exposition(service), media_type="text/plain; version=0.0.4; charset=utf-8")

    told = operation("/status", media="application/json")

    @router.get("/status", openapi_extra=told, summary="The model, the limits, and how the server does right now")
    async def status() -> Response:
        return json_response({"health": await _health(service), **_status(service, observatory)}, headers={"cache-control": "no-store"})

    return router


async def _health(service: Service) -> str:
    try:
        await service.check_health()
    except ApiError:
        return "ending" if service.draining else "unhealthy"
    return "well"


def _status(service: Service, observatory: Observatory) -> dict[str, Any]:
    settings, model, ready, load = service.settings, service.model, service.ready, observatory.engine.load
    return {
        "version": __version__,
        "model": {
            "name": model.name,
            "family": model.spec.family,
            "parameters": parameter_count(model.spec),
            "dtype": ready.dtype,
            "device": ready.device,
            "device_name": ready.device_name,
            "encoder": model.spec.encoder,
            "has_tokenizer": model.tokenizer is not None,
        },
        "needs_key": settings.api_key is not None,
        "limits": {
            "max_concurrent_requests": settings.max_concurrent_requests,
            "max_input_length": service.text_limit,
            "max_total_tokens": settings.total_tokens,
            "max_batch_total_tokens": service.batch_total_tokens,
            "max_best_of": settings.max_best_of,
            "max_stop_sequences": settings.max_stop_sequences,
            "max_top_n_tokens": settings.max_top_n_tokens,
            "payload_limit_bytes": settings.payload_limit,
            "queue_seconds": settings.queue_seconds,
        },
        "load": {
            "running": load.running,
            "waiting": load.waiting,
            "seats": ready.seats,
            "permits_in_use": service.permits.taken,
            "permits": service.permits.total,
            "pages_in_use": load.pages_in_use,
            "pages": ready.pages,
            "page_tokens": ready.page_size,
        },
        "requests": observatory.outcomes(),
        "now": asdict(observatory.engine.rates()),
        "totals": asdict(observatory.engine.totals),
        "basis": observatory.engine.basis,
    }
