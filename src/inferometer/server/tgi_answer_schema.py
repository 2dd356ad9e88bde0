"""The answers of text-generation-inference's routes."""

from __future__ import annotations

from typing import Literal

from inferometer.server.answer_schema import AnswerSchema
from inferometer.server.failures import Kind

FinishReason = Literal["length", "eos_token", "stop_sequence"]


class Error(AnswerSchema):
    """What went wrong, in one line."""

    error: str
    error_type: Kind


class PrefillToken(AnswerSchema):
    """A token of the prompt. The first one has no log-probability."""

    id: int
    text: str
    logprob: float | None


class Token(AnswerSchema):
    """A generated token. logprob: of the scores that it was chosen by, behind penalties, temperature and filters."""

    id: int
    text: str
    logprob: float | None
    special: bool


class SequenceDetails(AnswerSchema):
    """How a sequence came about. seed: null where nothing was drawn. top_tokens: with `top_n_tokens`, the likeliest at each place."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | None = None


class BestOfSequence(SequenceDetails):
    """A sequence that was not the best one."""

    generated_text: str


class Details(SequenceDetails):
    """How the answer came about. best_of_sequences: with `best_of`, the others."""

    best_of_sequences: list[BestOfSequence] | None = None


class GenerateResponse(AnswerSchema):
    """The generated text. details: if they were asked for."""

    generated_text: str
    details: Details | None = None


class StreamDetails(AnswerSchema):
    """How a stream came about."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None


class StreamResponse(AnswerSchema):
    """The data of one event of a stream. generated_text, and details if they were asked for: with the last token."""

    index: int
    token: Token
    top_tokens: list[Token] | None = None
    generated_text: str | None
    details: StreamDetails | None


class SimpleToken(AnswerSchema):
    """A token of a text, with the characters that it stands for, from and up to."""

    id: int
    text: str
    start: int
    stop: int


class Info(AnswerSchema):
    """What is served, and its limits."""

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_device_type: str
    model_pipeline_tag: str | None
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_length: int
    max_total_tokens: int
    waiting_served_ratio: float
    max_batch_total_tokens: int
    max_waiting_tokens: int
    validation_workers: int
    version: str
    sha: str | None
    docker_label: str | None
