"""When a continuation ends by the tokens themselves."""

from __future__ import annotations

from inferometer.schedule.completion import FinishReason
from inferometer.schedule.request import Request


def finish_reason(request: Request, token_id: int, generated: int) -> FinishReason | None:
    """Why a sequence ends with `token_id`, its newest of `generated` generated tokens; None if it goes on.

    An end token on the last permitted place counts as one.
    """
    params = request.params
    if token_id in params.stop_token_ids:
        return "stop_sequence"
    if token_id in request.eos_token_ids and not params.ignore_eos:
        return "eos_token"
    return "length" if generated >= params.max_new_tokens else None


def end_tokens(request: Request) -> frozenset[int]:
    """The tokens with which `request` ends wherever they come."""
    params = request.params
    return frozenset(params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *request.eos_token_ids))
