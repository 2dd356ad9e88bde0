"""Answers in OpenAI's shapes, whole or in chunks."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from inferometer import __version__
from inferometer.schedule.completion import FinishReason
from inferometer.server.answers import encode
from inferometer.server.generation import GeneratedToken, Generation
from inferometer.server.openai_logprobs import Offsets, TokenNames, chat_logprobs, completion_logprobs, joined, prompt_logprobs
from inferometer.server.openai_validation import OpenAIJob
from inferometer.server.service import Service

DONE: Final = b"data: [DONE]\n\n"

_REASONS: Final[dict[FinishReason, str]] = {"length": "length", "eos_token": "stop", "stop_sequence": "stop", "aborted": "stop"}


class Answer(ABC):
    """The answer to one request. `take` is given every token of every sequence, in order."""

    whole_object: str
    chunk_object: str
    prefix: str

    def __init__(self, job: OpenAIJob, service: Service, names: TokenNames) -> None:
        self.job = job
        self.names = names
        self.tokenizer = service.model.tokenizer
        self._id = f"{self.prefix}-{secrets.token_hex(16)}"
        self._created = int(time.time())
        self._model = service.model.name
        self._head = encode(self._about(self.chunk_object))[:-1]

    @abstractmethod
    def whole_choice(self, index: int, generation: Generation) -> dict[str, Any]:
        """A choice of a whole answer."""

    @abstractmethod
    def first_choice(self, index: int, generation: Generation) -> dict[str, Any] | None:
        """What comes before the tokens of a choice in a stream, None if nothing does."""

    @abstractmethod
    def next_choice(self, index: int, tokens: Sequence[GeneratedToken]) -> str:
        """Some tokens of a choice in a stream, as JSON: put together by hand, as an encoder takes 8 us for what takes 1."""

    def whole(self, ranked: Sequence[Sequence[Generation]]) -> dict[str, Any]:
        """The whole answer; `ranked` holds the sequences of each prompt, the best one first."""
        best = [generation for each in ranked for generation in each[: self.job.choices]]
        return {
            **self._about(self.whole_object),
            "choices": [self.whole_choice(index, generation) for index, generation in enumerate(best)],
            "usage": self.usage([generation for each in ranked for generation in each]),
        }

    def chunk(self, choice: str, usage: dict[str, Any] | None, *, with_usage: bool) -> str:
        """An event with one choice, which is JSON already."""
        tail = f',"usage":{encode(usage)}' if with_usage else ""
        return f'data: {self._head},"choices":[{choice}]{tail}}}\n\n'

    def last_chunk(self, usage: dict[str, Any]) -> str:
        """The event that tells the usage alone."""
        return f'data: {self._head},"choices":[],"usage":{encode(usage)}}}\n\n'

    def usage(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """Tokens in and out; those of all sequences that ran, chosen or not. cached_tokens: of prompts, each counted once."""
        prompt = self.job.prompt_tokens
        new = 0 if self.job.no_new_tokens else sum([len(each.tokens) for each in generations])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": sum([each.cached_tokens for each in generations[:: self.job.best_of]])},
        }

    def _about(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": f"inferometer-{__version__}",
        }


class ChatAnswer(Answer):
    """The next message of a conversation."""

    whole_object, chunk_object, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def whole_choice(self, index: int, generation: Generation) -> dict[str, Any]:
        """A choice of a whole answer."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": generation.text, "refusal": None},
            "logprobs": self._logprobs(generation.tokens),
            "finish_reason": _reason(generation.tokens),
        }

    def first_choice(self, index: int, generation: Generation) -> dict[str, Any]:
        """Who speaks."""
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def next_choice(self, index: int, tokens: Sequence[GeneratedToken]) -> str:
        """Some tokens of a choice in a stream."""
        content = encode(_text(tokens))
        return f'{{"index":{index},"delta":{{"content":{content}}},{_tail(self._logprobs(tokens), _reason(tokens))}}}'

    def _logprobs(self, tokens: Sequence[GeneratedToken]) -> dict[str, Any] | None:
        return None if self.job.logprobs is None else {**chat_logprobs(tokens, self.names), "refusal": None}


class CompletionAnswer(Answer):
    """Continuations of prompts."""

    whole_object, chunk_object, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, job: OpenAIJob, service: Service, names: TokenNames) -> None:
        super().__init__(job, service, names)
        self._offsets: dict[int, Offsets] = {}

    def whole_choice(self, index: int, generation: Generation) -> dict[str, Any]:
        """A choice of a whole answer."""
        text, logprobs = self._part(index, generation.tokens)
        first = self.first_choice(index, generation)
        if first is not None:
            text = first["text"] + text
            logprobs = None if logprobs is None else joined(first["logprobs"], logprobs)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": _reason(generation.tokens)}

    def first_choice(self, index: int, generation: Generation) -> dict[str, Any] | None:
        """The prompt, where it is to be repeated."""
        if not self.job.echoes:
            return None
        echo = self.job.echoes[index // self.job.choices]
        logprobs = None
        if self.job.logprobs is not None:
            assert generation.prompt_logprobs is not None
            logprobs = prompt_logprobs(generation.request.prompt_token_ids, generation.prompt_logprobs, echo.offsets, self.names)
        return {"index": index, "text": echo.text, "logprobs": logprobs, "finish_reason": None}

    def next_choice(self, index: int, tokens: Sequence[GeneratedToken]) -> str:
        """Some tokens of a choice in a stream."""
        text, logprobs = self._part(index, tokens)
        return f'{{"index":{index},"text":{encode(text)},{_tail(logprobs, _reason(tokens))}}}'

    def _part(self, index: int, tokens: Sequence[GeneratedToken]) -> tuple[str, dict[str, list[Any]] | None]:
        """The text of some tokens and their log-probabilities."""
        told = () if self.job.no_new_tokens else tokens
        logprobs = None
        if self.job.logprobs is not None:
            offsets = self._offsets.get(index)
            if offsets is None:
                start = len(self.job.echoes[index // self.job.choices].text) if self.job.echoes else 0
                offsets = self._offsets[index] = Offsets(self.tokenizer, start)
            logprobs = completion_logprobs(told, offsets, self.names)
        return _text(told), logprobs


def _tail(logprobs: dict[str, Any] | None, reason: str | None) -> str:
    """What the choices of both kinds end with."""
    told = "null" if logprobs is None else encode(logprobs)
    return f'"logprobs":{told},"finish_reason":{encode(reason)}'


def _text(tokens: Sequence[GeneratedToken]) -> str:
    return "".join([token.text for token in tokens])


def _reason(tokens: Sequence[GeneratedToken]) -> str | None:
    reason = tokens[-1].finish_reason
    return None if reason is None else _REASONS[reason]
