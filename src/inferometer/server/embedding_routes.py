"""OpenAI's route for embeddings, of a server whose model is an encoder."""

from __future__ import annotations

import base64
import math
import sys
import time
from array import array
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from inferometer.server.answers import json_response, unless_gone
from inferometer.server.body import read_body
from inferometer.server.failures import failed, invalid
from inferometer.server.openai_answer_schema import EmbeddingResponse
from inferometer.server.openai_refusals import refuse_adapter, refuse_what_is_not_here
from inferometer.server.openai_schema import EmbeddingRequest
from inferometer.server.openapi import OPENAI_WORKING, operation
from inferometer.server.service import Service

MAX_INPUTS = 2048
"""Texts of one request."""


def embedding_router(service: Service) -> APIRouter:
    """The route over one service."""
    router = APIRouter(tags=["OpenAI"], default_response_class=Response)
    path = "/v1/embeddings"
    example = {"model": "tgi", "input": ["The harbour", "A lighthouse"]}
    told = operation(path, takes=EmbeddingRequest, example=example, gives=EmbeddingResponse, fails=OPENAI_WORKING)

    @router.post(path, openapi_extra=told, summary="Embed texts")
    async def embeddings(request: Request) -> Response:
        wanted = await read_body(request, EmbeddingRequest, service.settings.payload_limit)
        return await unless_gone(request.receive, _embed(service, wanted, request.url.path))

    return router


async def _embed(service: Service, wanted: EmbeddingRequest, path: str) -> Response:
    arrived = time.perf_counter()
    with service.admitted(path):
        rows = await _validated(wanted, service)
        tokens = sum(map(len, rows))
        service.observer.validated(time.perf_counter() - arrived, tokens, 0)
        data: list[dict[str, Any]] = []
        async for part in service.embed(rows):
            for vector in _vectors(part.vectors, part.hidden):
                data.append({"object": "embedding", "index": len(data), "embedding": _written(vector, wanted)})
        service.observer.succeeded([])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response({"object": "list", "data": data, "model": service.model.name, "usage": usage})


async def _validated(wanted: EmbeddingRequest, service: Service) -> list[list[int]]:
    """The token ids of every text, or the first rule that `wanted` breaks, as ApiError."""
    service.must_embed()
    refuse_what_is_not_here(wanted.model_extra)
    refuse_adapter(wanted.model, service.model.name)
    if wanted.dimensions is not None and wanted.dimensions != service.model.spec.hidden:
        raise invalid(
            f"`dimensions`: the model's vectors have {service.model.spec.hidden} numbers and cannot be shortened; leave it out",
            "dimensions",
        )
    if len(wanted.input) > MAX_INPUTS:
        raise invalid(f"`input` must hold at most {MAX_INPUTS} texts, not {len(wanted.input)}", "input")
    if "" in wanted.input:
        raise invalid("`input` must not hold an empty text", "input")
    texts = [text for text in wanted.input if isinstance(text, str)]
    rows = await service.tokenise_all(texts) if texts else [list(ids) for ids in wanted.input if not isinstance(ids, str)]
    longest = service.text_limit
    for place, row in enumerate(rows):
        if len(row) > longest:
            raise invalid(
                f"`input` must have at most {longest} tokens in each text, not {len(row)} as number {place} has",
                "input",
                "context_length_exceeded",
            )
        service.check_prompt(row)
    return rows


def _vectors(data: bytes, hidden: int) -> list[array[float]]:
    numbers = array("f")
    numbers.frombytes(data)
    if not all(map(math.isfinite, numbers)):
        raise failed()
    return [numbers[start : start + hidden] for start in range(0, len(numbers), hidden)]


def _written(vector: array[float], wanted: EmbeddingRequest) -> Sequence[float] | str:
    """As a list of numbers, or as little-endian float32 in base64."""
    if wanted.encoding_format != "base64":
        return vector.tolist()
    if sys.byteorder != "little":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode("ascii")
