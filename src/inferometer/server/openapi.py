"""The OpenAPI document: bodies are read and answers written by us, so that we say what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from inferometer.server.answer_schema import AnswerSchema
from inferometer.server.body import Body
from inferometer.server.failures import is_openai
from inferometer.server.openai_answer_schema import OpenAIError
from inferometer.server.tgi_answer_schema import Error

_REFERENCES: Final = "#/components/schemas/{model}"

_MEANINGS: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "The body is not JSON, or breaks a rule of OpenAI's routes",
        401: "The API key is missing or wrong",
        404: "There is nothing of that name",
        408: "The request did not arrive in time",
        413: "The body is too large",
        415: "The body is not declared to be plain JSON",
        422: "The request breaks a rule",
        424: "The step that the request ran in failed",
        429: "As many sequences as may be are in flight",
        431: "The request's line and headers are too large",
        503: "The server is ending or unwell, or the request's turn did not come",
    }
)

READING: Final = (401, 431)
"""What can go wrong with any request."""

WORKING: Final = (400, 401, 408, 413, 415, 422, 424, 429, 431, 503)
"""What can go wrong with one that asks the model for something, on text-generation-inference's routes."""

OPENAI_WORKING: Final = tuple(status for status in WORKING if status != 422)
"""The same on OpenAI's."""


def operation(
    path: str,
    *,
    takes: type[Body] | None = None,
    example: Mapping[str, Any] | None = None,
    gives: type[AnswerSchema] | None = None,
    a_list: bool = False,
    streams: type[AnswerSchema] | None = None,
    media: str | None = None,
    fails: Sequence[int] = READING,
) -> dict[str, Any]:
    """A route's `openapi_extra`. takes: the body that it reads, with an example of one. gives: the JSON that it answers with, or a list
    of such. streams: the data of its events. media: what it answers with where that has no schema of ours. fails: statuses of its
    errors, in the dialect of `path`.
    """
    openai = is_openai(path)
    error = OpenAIError if openai else Error
    content: dict[str, Any] = {}
    if gives is not None:
        schema = _reference(gives)
        content["application/json"] = {"schema": {"type": "array", "items": schema} if a_list else schema}
    if streams is not None:
        data = {"contentMediaType": "application/json", "contentSchema": {"anyOf": [_reference(streams), _reference(error)]}}
        said = {"anyOf": [data, {"const": "[DONE]"}]} if openai else data
        content["text/event-stream"] = {"itemSchema": {"type": "object", "properties": {"data": {"type": "string", **said}}}}
    if media is not None:
        content[media] = {"schema": {"type": "object" if media == "application/json" else "string"}}
    answered: dict[str, Any] = {"description": "As asked", **({"content": content} if content else {})}
    failed = {"application/json": {"schema": _reference(error)}}
    made: dict[str, Any] = {
        "responses": {"200": answered, **{str(status): {"description": _MEANINGS[status], "content": failed} for status in fails}}
    }
    if takes is not None:
        body = {"schema": _reference(takes), "example": example}
        made["requestBody"] = {"required": True, "content": {"application/json": body}}
    return made


def describe(app: FastAPI) -> None:
    """Lets the document of `app` hold the schema of every body and every answer that there is."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            schemas = made.setdefault("components", {}).setdefault("schemas", {})
            for model in (*_all(Body), *_all(AnswerSchema)):
                schema = model.model_json_schema(ref_template=_REFERENCES)
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCES.format(model=model.__name__)}


def _all(base: type[BaseModel]) -> list[type[BaseModel]]:
    return [each for child in base.__subclasses__() for each in (child, *_all(child))]
