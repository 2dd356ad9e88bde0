"""text-generation-inference's routes."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Final

from fastapi import APIRouter, Request, Response

from inferometer import __version__
from inferometer.server.answers import EventStream, encode, json_response, unless_gone
from inferometer.server.body import read_body
from inferometer.server.failures import ApiError, body_of
from inferometer.server.generation import merged
from inferometer.server.openapi import WORKING, operation
from inferometer.server.service import Service
from inferometer.server.tgi_answer import answer_json, compute_headers, event_json, rank, time_headers
from inferometer.server.tgi_answer_schema import GenerateResponse, Info, SimpleToken, StreamResponse
from inferometer.server.tgi_schema import CompatRequest, GenerateRequest, TokenizeRequest
from inferometer.server.tgi_validation import validate

_EXAMPLE: Final = {"inputs": "The harbour", "parameters": {"max_new_tokens": 16, "details": True}}


def tgi_router(service: Service) -> APIRouter:
    """The routes over one service."""
    router = APIRouter(tags=["text-generation-inference"], default_response_class=Response)
    limit = service.settings.payload_limit
    full_text = service.model.pipeline_tag == "text-generation"  # what clients of the Hub's own API expect of such a model

    told = operation("/generate", takes=GenerateRequest, example=_EXAMPLE, gives=GenerateResponse, fails=WORKING)

    @router.post("/generate", openapi_extra=told, summary="Generate text")
    async def generate(request: Request) -> Response:
        wanted = await read_body(request, GenerateRequest, limit)
        return await unless_gone(request.receive, _whole(service, wanted, request.url.path, full_text=False, in_list=False))

    told = operation("/generate_stream", takes=GenerateRequest, example=_EXAMPLE, streams=StreamResponse, fails=WORKING)

    @router.post("/generate_stream", openapi_extra=told, summary="Generate text, a server-sent event a token")
    async def generate_stream(request: Request) -> Response:
        wanted = await read_body(request, GenerateRequest, limit)
        return _stream(service, wanted, request.url.path, full_text=False)

    told = operation(
        "/",
        takes=CompatRequest,
        example={**_EXAMPLE, "stream": False},
        gives=GenerateResponse,
        a_list=True,
        streams=StreamResponse,
        fails=WORKING,
    )

    @router.post("/invocations", openapi_extra=told, summary="Generate text, as a stream or not")
    @router.post("/", openapi_extra=told, summary="Generate text, as a stream or not")
    async def compat(request: Request) -> Response:
        wanted = await read_body(request, CompatRequest, limit)
        if wanted.stream:
            return _stream(service, wanted, request.url.path, full_text=full_text)
        return await unless_gone(request.receive, _whole(service, wanted, request.url.path, full_text=full_text, in_list=True))

    told = operation("/tokenize", takes=TokenizeRequest, example={"inputs": "The harbour"}, gives=SimpleToken, a_list=True, fails=WORKING)

    @router.post("/tokenize", openapi_extra=told, summary="Cut a text into tokens")
    async def tokenize(request: Request) -> Response:
        wanted = await read_body(request, TokenizeRequest, limit)
        return await unless_gone(request.receive, _tokenize(service, wanted))

    @router.get("/info", openapi_extra=operation("/info", gives=Info), summary="What is served, and its limits")
    async def info() -> Response:
        return json_response(_info(service))

    return router


async def _whole(service: Service, wanted: GenerateRequest, path: str, *, full_text: bool, in_list: bool) -> Response:
    arrived = time.perf_counter()
    with service.admitted(path) as permit:
        job = await validate(wanted, service, stream=False, full_text=full_text)
        permit.grow(job.best_of - 1)
        validated = time.perf_counter()
        service.observer.validated(validated - arrived, len(job.prompt_token_ids), job.params.max_new_tokens)
        async with service.generations([(job.prompt_token_ids, job.params)] * job.best_of, keep_stop=True) as generations:
            async for _ in merged(generations):
                pass
        ranked = rank(generations)
        answer = answer_json(ranked, service, details=job.details, add_prompt=job.add_prompt)
        service.observer.succeeded(ranked)
    headers = time_headers(service, ranked[0], arrived, validated, job.inputs_characters)
    return json_response([answer] if in_list else answer, headers=headers)


def _stream(service: Service, wanted: GenerateRequest, path: str, *, full_text: bool) -> Response:
    return EventStream(_events(service, wanted, path, full_text), compute_headers(service, len(wanted.inputs)))


async def _events(service: Service, wanted: GenerateRequest, path: str, full_text: bool) -> AsyncGenerator[bytes, None]:
    """The events of one step are one piece. Whatever goes wrong, from the start on, is an event too: the status has been sent."""
    arrived = time.perf_counter()
    try:
        with service.admitted(path):
            job = await validate(wanted, service, stream=True, full_text=full_text)
            service.observer.validated(time.perf_counter() - arrived, len(job.prompt_token_ids), job.params.max_new_tokens)
            async with service.generations([(job.prompt_token_ids, job.params)], keep_stop=True) as (generation,):
                index, last = 0, b""
                async for tokens in generation.steps():
                    events = []
                    for token in tokens:
                        index += 1
                        event = event_json(token, index, generation, service, details=job.details, add_prompt=job.add_prompt)
                        events.append(f"data:{encode(event)}\n\n")
                    last = "".join(events).encode()
                    if not generation.finished:
                        yield last
            service.observer.succeeded([generation])
        # Behind all counting: a client that leaves without its last event was served all the same.
        yield last
    except ApiError as error:
        yield f"data:{encode(body_of(error, path))}\n\n".encode()


async def _tokenize(service: Service, wanted: TokenizeRequest) -> Response:
    special = True if wanted.add_special_tokens is None else wanted.add_special_tokens
    return Response(await service.tokens_json(wanted.inputs, special=special), media_type="application/json")


def _info(service: Service) -> dict[str, object]:
    settings, ready = service.settings, service.ready
    return {
        "model_id": service.model.name,
        "model_sha": service.model.commit,
        "model_dtype": f"torch.{ready.dtype}",
        "model_device_type": ready.device.partition(":")[0],
        "model_pipeline_tag": service.model.pipeline_tag,
        "max_concurrent_requests": settings.max_concurrent_requests,
        "max_best_of": settings.max_best_of,
        "max_stop_sequences": settings.max_stop_sequences,
        "max_input_length": service.text_limit,
        "max_total_tokens": settings.total_tokens,
        "waiting_served_ratio": settings.waiting_served_ratio,
        "max_batch_total_tokens": service.batch_total_tokens,
        "max_waiting_tokens": settings.max_waiting_tokens,
        "validation_workers": settings.validation_workers,
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }
