"""The HTTP application over one service."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from inferometer import __version__
from inferometer.server.answers import error_response
from inferometer.server.docs_routes import docs_router
from inferometer.server.embedding_routes import embedding_router
from inferometer.server.failures import ApiError, ClientGoneError, Kind
from inferometer.server.guard import Guard
from inferometer.server.heads import HeadAsGet
from inferometer.server.health_routes import health_router
from inferometer.server.observatory import Observatory
from inferometer.server.openai_routes import openai_router
from inferometer.server.openapi import describe
from inferometer.server.service import Service
from inferometer.server.status_routes import status_router
from inferometer.server.tgi_routes import tgi_router
from inferometer.server.watch import Watch

_KINDS: dict[int, Kind] = {404: "not_found", 405: "method_not_allowed"}


def make_app(service: Service, observatory: Observatory) -> FastAPI:
    """All routes, behind key and cross-origin rules, watched by `observatory`."""
    app = FastAPI(
        title="Inferometer",
        version=__version__,
        description="Text generation over text-generation-inference's and OpenAI's HTTP interfaces.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api-doc/openapi.json",
        redirect_slashes=False,  # an address with a slash too many is none, as the launcher has it; a redirect would have no JSON
    )
    routers = (
        status_router(service, observatory),
        health_router(service),
        tgi_router(service),
        openai_router(service),
        embedding_router(service),
        docs_router(lambda: app.openapi()),
    )
    for router in routers:
        app.include_router(router)
    routes = [route for known in (app, *routers) for route in known.routes if isinstance(route, Route)]
    describe(app)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_middleware(Guard, api_key=service.settings.api_key)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(service.settings.cors_allow_origin) or ["*"],
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # OpenAI's client in a browser sends a dozen of its own
    )
    app.add_middleware(Watch, routes=routes, answered=observatory.answered, ended=observatory.ended)
    app.add_middleware(HeadAsGet)
    return app


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.url.path)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # to nobody


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = _KINDS.get(error.status_code, "validation" if error.status_code < 500 else "internal")
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = _methods(request, headers.get("Allow", ""))
    told = ApiError(error.status_code, kind, str(error.detail), headers=headers)
    return error_response(told, request.url.path)


def _methods(request: Request, refusing: str) -> str:
    """All that an address answers to. refusing: the word of the route that refused, behind which there may be another one."""
    found = {method.upper() for method in request.app.openapi()["paths"].get(request.url.path, ())} or {refusing}
    return ", ".join(sorted(found | {"HEAD"} if "GET" in found else found))


async def _validation_error(request: Request, error: Exception) -> Response:
    # Of a query or path parameter: bodies are read by us.
    return error_response(ApiError(422, "validation", "A parameter of the address has the wrong form"), request.url.path)
