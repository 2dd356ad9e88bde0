"""Answers in text-generation-inference's shapes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from inferometer.schedule.completion import TopLogprobs
from inferometer.server.generation import GeneratedToken, Generation
from inferometer.server.service import Service


def token_json(token: GeneratedToken, service: Service) -> dict[str, Any]:
    """{id, text, logprob, special}; a special token's text is its name, which is no part of the generated text."""
    text = token.text + service.token_text(token.token_id) if token.special else token.text
    return {"id": token.token_id, "text": text, "logprob": finite(token.logprob), "special": token.special}


def top_json(top: TopLogprobs, service: Service) -> list[dict[str, Any]]:
    """The likeliest tokens at one place, best first."""
    tokenizer = service.model.tokenizer
    return [
        {
            "id": token_id,
            "text": service.token_text(token_id),
            "logprob": finite(logprob),
            "special": tokenizer is not None and tokenizer.is_special(token_id),
        }
        for token_id, logprob in top
    ]


def prefill_json(generation: Generation, service: Service) -> list[dict[str, Any]]:
    """The prompt's tokens with their log-probabilities, of which the first has none; [] unless they were asked for."""
    if generation.prompt_logprobs is None:
        return []
    pairs = zip(generation.request.prompt_token_ids, generation.prompt_logprobs, strict=True)
    return [{"id": token_id, "text": service.token_text(token_id), "logprob": finite(logprob)} for token_id, logprob in pairs]


def details_json(generation: Generation, service: Service) -> dict[str, Any]:
    """How a generation came about."""
    details: dict[str, Any] = {
        "finish_reason": generation.finish_reason,
        "generated_tokens": len(generation.tokens),
        "seed": seed_of(generation),
        "prefill": prefill_json(generation, service),
        "tokens": [token_json(token, service) for token in generation.tokens],
    }
    if generation.request.params.top_logprobs:
        details["top_tokens"] = [top_json(token.top, service) for token in generation.tokens]
    return details


def answer_json(ranked: Sequence[Generation], service: Service, *, details: bool, add_prompt: str) -> dict[str, Any]:
    """The answer to one request; `ranked` holds its sequences, the best one first."""
    best, *others = ranked
    answer: dict[str, Any] = {"generated_text": add_prompt + best.text}
    if details:
        answer["details"] = details_json(best, service)
        if others:
            answer["details"]["best_of_sequences"] = [
                {"generated_text": add_prompt + other.text, **details_json(other, service)} for other in others
            ]
    return answer


def event_json(
    token: GeneratedToken, index: int, generation: Generation, service: Service, *, details: bool, add_prompt: str
) -> dict[str, Any]:
    """An event of a stream: a token, and with the last one what it came to."""
    last = token.finish_reason is not None
    event: dict[str, Any] = {
        "index": index,
        "token": token_json(token, service),
        "generated_text": add_prompt + generation.text if last else None,
        "details": None,
    }
    if token.top:
        event["top_tokens"] = top_json(token.top, service)
    if last and details:
        event["details"] = {
            "finish_reason": generation.finish_reason,
            "generated_tokens": len(generation.tokens),
            "seed": seed_of(generation),
        }
    return event


def seed_of(generation: Generation) -> int | None:
    """What the tokens were drawn with, None if nothing was drawn."""
    return generation.request.seed if generation.request.params.samples else None


def rank(generations: Sequence[Generation]) -> list[Generation]:
    """Those that compete, highest mean log-probability of their tokens first; among equals in order."""
    return sorted(generations, key=lambda each: -sum(token.logprob for token in each.tokens) / len(each.tokens))


def compute_headers(service: Service, characters: int) -> dict[str, str]:
    """What every answer says of the computer."""
    kind = "gpu" if service.ready.device.startswith("cuda") else "cpu"
    return {"x-compute-type": f"{kind}+optimized", "x-compute-characters": str(characters)}


def time_headers(service: Service, generation: Generation, arrived: float, validated: float, characters: int) -> dict[str, str]:
    """What a whole answer says of its time, in milliseconds. arrived, validated: by time.perf_counter."""
    now = time.perf_counter()
    times = generation.times
    started = times.started or times.submitted
    inference = (times.last_token or now) - started
    return {
        **compute_headers(service, characters),
        "x-compute-time": _ms(now - arrived),
        "x-total-time": _ms(now - arrived),
        "x-validation-time": _ms(validated - arrived),
        "x-queue-time": _ms(started - times.submitted),
        "x-inference-time": _ms(inference),
        "x-time-per-token": _ms(inference / max(1, len(generation.tokens))),
    }


def finite(number: float | None) -> float | None:
    """The number, None where JSON has no way to write it."""
    return number if number is not None and math.isfinite(number) else None


def _ms(seconds: float) -> str:
    return str(max(0, int(seconds * 1000)))
