"""A batch of the hf backend: transformers' forward over a cache, step by step, and its own filters before a token is chosen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

from inferometer.schedule.sampling import SamplingParams


class Batch:
    """A batch in progress.

    ids: int64 (rows, length), which run at once. cache: of transformers; None where what comes back with a step is the next one's.
    prompt_model, step_model: what runs the prompts, and the steps after them, if not `model` itself.
    tokens: of every step so far, int64 (rows, 1). scores: float32 (rows, vocabulary), which the newest was chosen from.
    """

    def __init__(
        self,
        model: Any,
        ids: Tensor,
        params: SamplingParams,
        cache: Any,
        step_model: Callable[..., Any] | None = None,
        prompt_model: Callable[..., Any] | None = None,
    ) -> None:
        self._processors = _processors(params)
        # Processors that look back need what came before; without any, the prompt is not kept.
        self._seen = ids if self._processors else None
        self._generator = None if params.greedy else torch.Generator(ids.device).manual_seed(params.seed or 0)
        self.cache = cache
        # Renamed from the one to the other within transformers 5.
        self._cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self.tokens: list[Tensor] = []
        self._take(prompt_model or model, ids)
        self._step_model = step_model or model

    def step(self) -> None:
        """Feeds the newest token."""
        self._take(self._step_model, self.tokens[-1])

    def unstep(self) -> None:
        """Forgets the newest token; the cache is its owner's to shorten."""
        self.tokens.pop()
        if self._seen is not None:
            self._seen = self._seen[:, :-1]

    def chosen(self) -> Tensor:
        """float32 (rows, 1): the log-probability of each row's newest token."""
        return self.scores.gather(1, self.tokens[-1]) - self.scores.logsumexp(1, keepdim=True)

    def _logits(self, model: Callable[..., Any], ids: Tensor) -> Tensor:
        """(rows, 1 or more, vocabulary) after the last tokens of `ids`, which the cache takes in."""
        logits: Tensor = model(input_ids=ids, use_cache=True, logits_to_keep=1, **{self._cache_argument: self.cache}).logits
        return logits

    def _take(self, model: Callable[..., Any], ids: Tensor) -> None:
        self.scores: Tensor = self._logits(model, ids)[:, -1].float()
        if self._seen is not None:
            self.scores = self._processors(self._seen, self.scores)
        if self._generator is None:
            token = self.scores.argmax(1, keepdim=True)
        else:
            token = torch.multinomial(self.scores.softmax(1), 1, generator=self._generator)
        if self._seen is not None:
            self._seen = torch.cat((self._seen, token), 1)
        self.tokens.append(token)


def _processors(params: SamplingParams) -> Any:
    """transformers' own filters, in the order in which its generate applies them."""
    found = transformers.LogitsProcessorList()
    if params.repetition_penalty != 1:
        found.append(transformers.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.greedy:
        return found
    if params.temperature != 1:
        found.append(transformers.TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        found.append(transformers.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        found.append(transformers.TopPLogitsWarper(params.top_p))
    if params.typical_p < 1:
        found.append(transformers.TypicalLogitsWarper(params.typical_p))
    return found
