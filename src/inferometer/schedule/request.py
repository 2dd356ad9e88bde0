"""A request: what the engine is asked to generate."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.schedule.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to continue it.

    prompt_token_ids: at least one. seed: the request's own, so that its tokens depend on nothing else in the batch.
    eos_token_ids: tokens that end it unless the parameters say otherwise. model_logprobs: whether the log-probabilities of its tokens are
    to be the model's own, of its scores as they are, in place of those that a token is chosen by, behind penalties and filters.
    """

    id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    eos_token_ids: tuple[int, ...] = ()
    model_logprobs: bool = False

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise ValueError("a request needs at least one prompt token")

    @property
    def tokens(self) -> int:
        """The most tokens its sequence can come to hold, prompt and continuation."""
        return len(self.prompt_token_ids) + self.params.max_new_tokens


def request_seed(seed: int, ordinal: int) -> int:
    """The seed of a request that brings none: the engine's seed and how many requests came before it, mixed (splitmix64)."""
    state = (seed * 0x9E3779B97F4A7C15 + ordinal + 1) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)
