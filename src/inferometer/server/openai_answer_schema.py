"""The answers of OpenAI's routes."""

from __future__ import annotations

from typing import Literal

from inferometer.server.answer_schema import AnswerSchema

FinishReason = Literal["stop", "length"]


class OpenAIErrorBody(AnswerSchema):
    """message: one line. param: the field at fault. code: OpenAI's word for it, where it has one."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(AnswerSchema):
    """What went wrong."""

    error: OpenAIErrorBody


class PromptTokensDetails(AnswerSchema):
    """cached_tokens: prompt tokens that did not have to be computed."""

    cached_tokens: int


class Usage(AnswerSchema):
    """Tokens in and out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(AnswerSchema):
    """The model's own log-probabilities, before penalties, temperature and filters. text_offset: where each token's text begins."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(AnswerSchema):
    """One continuation, or a piece of one in a stream, where only the last piece has a reason to end."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class CompletionResponse(AnswerSchema):
    """Continuations; in a stream the data of one event. usage: in a stream only if asked for."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(AnswerSchema):
    """A token that might have been. bytes: null without a tokenizer."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the answer, with the likeliest ones at its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(AnswerSchema):
    """The model's own log-probabilities, before penalties, temperature and filters."""

    content: list[TokenLogprob]
    refusal: None


class ChatMessage(AnswerSchema):
    """The next message of the conversation."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(AnswerSchema):
    """One next message."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatResponse(AnswerSchema):
    """Next messages of a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(AnswerSchema):
    """What a message grows by. role: in the first event of a choice."""

    role: Literal["assistant"] | None = None
    content: str


class ChatChunkChoice(AnswerSchema):
    """A piece of one next message."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(AnswerSchema):
    """The data of one event of a stream; the last event is [DONE]."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class Model(AnswerSchema):
    """The model that is served. max_model_len: most tokens of a request."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(AnswerSchema):
    """The models that are served: one."""

    object: Literal["list"]
    data: list[Model]


class Embedding(AnswerSchema):
    """The vector of one text, as numbers, or as little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(AnswerSchema):
    """Tokens in."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(AnswerSchema):
    """Vectors, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
