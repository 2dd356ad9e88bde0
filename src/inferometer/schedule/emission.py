"""What a step of the engine yields for a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.schedule.completion import FinishReason


@dataclass(frozen=True, slots=True)
class Emission:
    """One generated token of one request.

    logprob: natural logarithm, under the distribution it was chosen from. top: (token, logprob) of the likeliest, as many as
    asked. prompt_logprobs: with the first token only, if asked: None for the first prompt token, then one float a token.
    finish_reason: set with the last token.
    """

    request_id: int
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    prompt_logprobs: tuple[float | None, ...] | None = None
    finish_reason: FinishReason | None = None
