"""OpenAI's routes that generate text, and the list of models."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from inferometer.server.answers import EventStream, encode, json_response, unless_gone
from inferometer.server.body import read_body
from inferometer.server.failures import ApiError, body_of
from inferometer.server.generation import GeneratedToken, Generation, merged
from inferometer.server.openai_answer import DONE, Answer, ChatAnswer, CompletionAnswer
from inferometer.server.openai_answer_schema import ChatChunk, ChatResponse, CompletionResponse, Model, ModelList
from inferometer.server.openai_logprobs import TokenNames
from inferometer.server.openai_schema import ChatRequest, CompletionRequest, OpenAIRequest, StreamOptions
from inferometer.server.openai_validation import OpenAIJob, validate_chat, validate_completion
from inferometer.server.openapi import OPENAI_WORKING, READING, operation
from inferometer.server.service import Service
from inferometer.server.tgi_answer import rank


def openai_router(service: Service) -> APIRouter:
    """The routes over one service."""
    router = APIRouter(tags=["OpenAI"], default_response_class=Response)
    limit = service.settings.payload_limit
    names = TokenNames(service.model.tokenizer)
    started = int(time.time())

    path = "/v1/completions"
    example: dict[str, Any] = {"model": "tgi", "prompt": "The harbour", "max_tokens": 16}
    told = operation(
        path, takes=CompletionRequest, example=example, gives=CompletionResponse, streams=CompletionResponse, fails=OPENAI_WORKING
    )

    @router.post(path, openapi_extra=told, summary="Continue prompts")
    async def completions(request: Request) -> Response:
        wanted = await read_body(request, CompletionRequest, limit)
        return await _answer(request, wanted, service, names, lambda: validate_completion(wanted, service), CompletionAnswer)

    path = "/v1/chat/completions"
    example = {"model": "tgi", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 16}
    told = operation(path, takes=ChatRequest, example=example, gives=ChatResponse, streams=ChatChunk, fails=OPENAI_WORKING)

    @router.post(path, openapi_extra=told, summary="Continue a conversation")
    async def chat_completions(request: Request) -> Response:
        wanted = await read_body(request, ChatRequest, limit)
        return await _answer(request, wanted, service, names, lambda: validate_chat(wanted, service), ChatAnswer)

    @router.get("/v1/models", openapi_extra=operation("/v1/models", gives=ModelList), summary="The models that are served: one")
    async def models() -> Response:
        return json_response({"object": "list", "data": [_model(service, started)]})

    path = "/v1/models/{model_id:path}"
    told = operation(path, gives=Model, fails=(*READING, 404))
    named = {"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}, "example": service.model.name}

    @router.get(path, openapi_extra={**told, "parameters": [named]}, summary="The model that is served")
    async def model(request: Request) -> Response:
        if request.path_params["model_id"] != service.model.name:
            raise ApiError(404, "not_found", "No such model; /v1/models lists what is served", param="model", code="model_not_found")
        return json_response(_model(service, started))

    return router


def _model(service: Service, started: int) -> dict[str, Any]:
    longest = service.text_limit if service.model.spec.encoder else service.settings.total_tokens
    return {"id": service.model.name, "object": "model", "created": started, "owned_by": "inferometer", "max_model_len": longest}


async def _answer(
    request: Request,
    wanted: OpenAIRequest,
    service: Service,
    names: TokenNames,
    validate: Callable[[], Awaitable[OpenAIJob]],
    shape: type[Answer],
) -> Response:
    path = request.url.path
    if not wanted.stream:
        return await unless_gone(request.receive, _whole(service, names, validate, shape, path))
    events = _events(service, names, validate, shape, path, wanted.stream_options or StreamOptions())
    return EventStream(await unless_gone(request.receive, _begun(events)))


async def _whole(
    service: Service, names: TokenNames, validate: Callable[[], Awaitable[OpenAIJob]], shape: type[Answer], path: str
) -> Response:
    arrived = time.perf_counter()
    with service.admitted(path) as permit:
        job = await validate()
        requests = job.requests
        permit.grow(len(requests) - 1)
        service.observer.validated(time.perf_counter() - arrived, job.prompt_tokens, job.prompts[0][1].max_new_tokens)
        async with service.generations(requests, keep_stop=False, model_logprobs=job.model_logprobs) as generations:
            async for _ in merged(generations):
                pass
        of_prompts = [generations[start : start + job.best_of] for start in range(0, len(generations), job.best_of)]
        ranked = of_prompts if job.best_of == job.choices else [rank(each) for each in of_prompts]
        answer = shape(job, service, names).whole(ranked)
        service.observer.succeeded(generations)
    return json_response(answer)


async def _begun(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events of a request that has been let in. What keeps it out is raised here, while there is a status to tell it by."""
    await anext(events)
    return events


async def _events(
    service: Service,
    names: TokenNames,
    validate: Callable[[], Awaitable[OpenAIJob]],
    shape: type[Answer],
    path: str,
    options: StreamOptions,
) -> AsyncGenerator[bytes, None]:
    """First of all nothing, once the request is with the engine; then the events of one step as one piece each."""
    arrived = time.perf_counter()
    begun = False
    try:
        with service.admitted(path) as permit:
            job = await validate()
            requests = job.requests
            permit.grow(len(requests) - 1)
            service.observer.validated(time.perf_counter() - arrived, job.prompt_tokens, job.prompts[0][1].max_new_tokens)
            answer = shape(job, service, names)
            async with service.generations(requests, keep_stop=False, model_logprobs=job.model_logprobs) as generations:
                begun = True
                yield b""
                piece = ""
                async for step in merged(generations):
                    piece = _piece(answer, generations, step, options)
                    if not all(each.finished for each in generations):
                        yield piece.encode()
            service.observer.succeeded(generations)
        # Behind all counting: a client that leaves without its last event was served all the same.
        if options.include_usage:
            piece += answer.last_chunk(answer.usage(generations))
        yield piece.encode() + DONE
    except ApiError as error:
        if not begun:
            raise
        yield f"data: {encode(body_of(error, path))}\n\n".encode() + DONE


def _piece(
    answer: Answer, generations: Sequence[Generation], step: Sequence[tuple[int, list[GeneratedToken]]], options: StreamOptions
) -> str:
    """The events of one step."""
    usage = answer.usage(generations) if options.continuous_usage_stats else None
    with_usage = bool(options.include_usage or options.continuous_usage_stats)
    events = []
    for index, tokens in step:
        if len(generations[index].tokens) == len(tokens):  # its first ones
            first = answer.first_choice(index, generations[index])
            if first is not None:
                events.append(answer.chunk(encode(first), usage, with_usage=with_usage))
        events.append(answer.chunk(answer.next_choice(index, tokens), usage, with_usage=with_usage))
    return "".join(events)
