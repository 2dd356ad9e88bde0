"""How long one sequence of a model may become."""

from __future__ import annotations

from typing import Final

from inferometer.model.spec import ModelSpec
from inferometer.schedule.request import Request
from inferometer.schedule.scheduler import RequestTooLargeError

LONGEST: Final = 2**20
"""The most tokens of a sequence of a model that sets no limit: the block table has a row as long as that for every seat."""


def sequence_limit(spec: ModelSpec) -> int:
    """The most tokens of a sequence that are run."""
    return spec.context_limit or LONGEST


def check_length(request: Request, spec: ModelSpec) -> None:
    """Raises RequestTooLargeError where prompt and new tokens are more than such a sequence can have."""
    longest = sequence_limit(spec)
    if request.tokens - 1 > longest:  # the last token is never run
        prompt, new = len(request.prompt_token_ids), request.params.max_new_tokens
        raise RequestTooLargeError.of(
            f"a prompt of {prompt} tokens and {new} new ones are more than the {longest} tokens that a sequence of "
            f"{spec.name} can have; use a shorter prompt or a smaller ",
            "max_new_tokens",
        )
