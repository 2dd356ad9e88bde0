"""Prompts as callers give them, and the requests that they become."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from operator import index

from inferometer.engine.sampler import check
from inferometer.errors import UserError
from inferometer.model.spec import ModelSpec
from inferometer.schedule.request import Request, request_seed
from inferometer.schedule.sampling import NamedError, SamplingParams
from inferometer.text.tokenizer import Tokenizer

Prompts = str | Sequence[str | Sequence[int]]
"""A text, or texts and lists of token ids."""


class PromptReader:
    """Makes requests of prompts for a model. tokenizer: None for token ids alone. eos_token_ids: that end a text. made: requests so far.

    Methods raise UserError, one line, for what is no prompt or cannot run.
    """

    def __init__(self, spec: ModelSpec, tokenizer: Tokenizer | None, eos_token_ids: tuple[int, ...]) -> None:
        self.spec = spec
        self.tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids
        self.made = 0
        self._numbering = threading.Lock()  # threads may read prompts at once, and no two requests have one number

    @property
    def context_limit(self) -> int | None:
        """Most tokens of one sequence: the positions the model has, or its sliding window if that is shorter."""
        return self.spec.full_context_limit

    def requests(self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams], seed: int) -> list[Request]:
        """One a prompt, in order, numbered on from those before. params: for all, or one a prompt. seed: of those that bring none."""
        rows = self.token_ids(prompts)
        wanted = [params] * len(rows) if isinstance(params, SamplingParams) else params
        if not isinstance(wanted, Sequence) or not all(isinstance(own, SamplingParams) for own in wanted):
            raise UserError(f"params must be SamplingParams, or a list with one a prompt, not {type(params).__name__}")
        if len(wanted) != len(rows):
            raise UserError(f"{len(rows)} prompts but {len(wanted)} sampling parameters; give one for all or one a prompt")
        kept: list[tuple[int, ...]] = []
        for ids, own in zip(rows, wanted, strict=True):
            check(own, self.spec.vocabulary, self.eos_token_ids)
            if own.stop and self.tokenizer is None:
                raise UserError(f"{self.spec.name} has no tokenizer, so stop strings cannot be matched; use stop_token_ids or --tokenizer")
            kept.append(tuple(ids if own.truncate is None else ids[-own.truncate :]))
            self._require_room(len(kept[-1]), own.max_new_tokens)
        with self._numbering:
            first = self.made
            self.made += len(kept)
        return [
            Request(number, ids, own, request_seed(seed, number) if own.seed is None else own.seed, self.eos_token_ids)
            for number, (ids, own) in enumerate(zip(kept, wanted, strict=True), first)
        ]

    def token_ids(self, prompts: Prompts) -> list[list[int]]:
        """Of every prompt, one or more."""
        if isinstance(prompts, str):
            prompts = [prompts]
        refusal = UserError("prompts are texts or lists of token ids, which are whole numbers; wrap a single prompt's ids in a list")
        if not isinstance(prompts, Iterable):
            raise refusal
        rows = []
        for prompt in prompts:
            if isinstance(prompt, str):
                if self.tokenizer is None:
                    raise UserError(f"{self.spec.name} has no tokenizer; give token ids, or a tokenizer with --tokenizer PATH|byte")
                ids = self.tokenizer.encode(prompt)
            else:
                try:
                    ids = [index(token) for token in prompt]
                except TypeError:  # no list, or no whole numbers in it
                    raise refusal from None
            if not ids:
                raise UserError("a prompt has no tokens; give at least one")
            wrong = next((token for token in ids if not 0 <= token < self.spec.vocabulary), None)
            if wrong is not None:
                raise UserError(f"token id {wrong} is outside the vocabulary of {self.spec.name}, 0 to {self.spec.vocabulary - 1}")
            rows.append(ids)
        return rows

    def cut(self, ids: list[int], length: int) -> list[int]:
        """The first `length` tokens; a closing special token ([SEP]) stays the last one, as in training."""
        if len(ids) <= length:
            return ids
        closing = self.tokenizer is not None and self.tokenizer.is_special(ids[-1])
        return [*ids[: length - 1], ids[-1]] if closing else ids[:length]

    def _require_room(self, prompt: int, new: int) -> None:
        limit = self.context_limit
        if limit is not None and prompt + new > limit:
            what = "positions" if limit == self.spec.context_limit else "tokens of its sliding window"
            raise NamedError.of(
                f"{prompt} prompt tokens and {new} new ones are more than the {limit} {what} of {self.spec.name}; "
                "shorten the prompt or lower ",
                "max_new_tokens",
            )
