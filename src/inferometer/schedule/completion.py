"""What comes back: a finished continuation, and the tokens of one that streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

FinishReason = Literal["length", "eos_token", "stop_sequence", "aborted"]

TopLogprobs = tuple[tuple[int, float], ...]
"""The likeliest tokens at one place and their log-probabilities, best first, equals by id."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The continuation of one prompt.

    Token ids are lists, so that they can be prompts again. `token_ids` holds every generated token, the one that ended it
    included; `text` is their text without special tokens, up to and including a stop string; "" if the model has no tokenizer.
    logprobs: natural logarithm of each generated token's probability under the scores it was chosen from. -inf where the model
    gave no token any probability.
    prompt_logprobs: if asked, one a prompt token under the model's own distribution; the first has none.
    finish_reason: "stop_sequence" stands for stop strings and stop_token_ids; an end token or stop on the last permitted place
    wins over "length".
    top_logprobs: if asked, the likeliest tokens at each generated place. seed: what the tokens were drawn with, None if greedy.

    Raises ValueError where the lists contradict each other.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    logprobs: list[float]
    prompt_logprobs: list[float | None] | None
    finish_reason: FinishReason
    top_logprobs: list[TopLogprobs] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.finish_reason not in get_args(FinishReason):
            raise ValueError(f"finish_reason must be one of {get_args(FinishReason)}, not {self.finish_reason!r}")
        if len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} generated tokens need as many logprobs, not {len(self.logprobs)}")
        if self.top_logprobs is not None and len(self.top_logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} generated tokens need as many top_logprobs, not {len(self.top_logprobs)}")
        if self.prompt_logprobs is not None and len(self.prompt_logprobs) != len(self.prompt_token_ids):
            raise ValueError(f"{len(self.prompt_token_ids)} prompt tokens need as many logprobs, not {len(self.prompt_logprobs)}")


@dataclass(frozen=True, slots=True)
class StreamedToken:
    """One generated token on its way out.

    prompt: which of the prompts it continues. index: its place in the continuation. text: what it adds to the text, "" while
    bytes of a character or a possible stop string are held back; the pieces of a stream concatenate to the completion's text.
    special: whether the token is a special one, whose own text is not part of the continuation.
    completion: with the last token only.
    """

    prompt: int
    index: int
    token_id: int
    text: str
    logprob: float
    special: bool = False
    top_logprobs: TopLogprobs = ()
    completion: Completion | None = None
