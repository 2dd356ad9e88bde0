"""The OpenAPI document: bodies are read by us, so that we say what they are."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from inferometer.server.body import Body

_REFERENCES = "#/components/schemas/{model}"


def takes(body: type[Body]) -> dict[str, Any]:
    """A route's `openapi_extra` for one that reads `body`."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _REFERENCES.format(model=body.__name__)}}},
        }
    }


def describe_bodies(app: FastAPI) -> None:
    """Lets the document of `app` hold the schema of every body that there is."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            schemas = made.setdefault("components", {}).setdefault("schemas", {})
            for body in _all(Body):
                schema = body.model_json_schema(ref_template=_REFERENCES)
                schemas.update(schema.pop("$defs", {}))
                schemas[body.__name__] = schema
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _all(body: type[Body]) -> list[type[Body]]:
    return [each for child in body.__subclasses__() for each in (child, *_all(child))]
