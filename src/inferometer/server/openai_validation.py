"""OpenAI's rules: what a request may ask for, and what it asks the engine for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from inferometer.errors import UserError
from inferometer.schedule.sampling import SEEDS, SamplingParams
from inferometer.server.failures import ApiError, invalid
from inferometer.server.openai_refusals import refuse_adapter, refuse_in_messages, refuse_what_is_not_here
from inferometer.server.openai_schema import ChatRequest, CompletionRequest, OpenAIRequest, Prompt
from inferometer.server.service import Service

MAX_TOKENS: Final = 16
"""New tokens of a completion that does not say how many."""

MAX_CHOICES: Final = 128

MAX_NAMED: Final = 4096
"""Tokens that a request may name in one field: each costs the engine something whenever the batch changes."""


@dataclass(frozen=True, slots=True)
class OpenAIJob:
    """A valid request. prompts: token ids, with the parameters of each. choices: of each prompt; best_of: sequences that compete for
    them. logprobs: how many of the likeliest tokens to tell beside each, None to tell none. echoes: one a prompt if they are repeated.
    no_new_tokens: the prompt alone is of interest; the one token that the engine makes all the same is not told.
    """

    prompts: tuple[tuple[tuple[int, ...], SamplingParams], ...]
    choices: int
    best_of: int
    logprobs: int | None = None
    echoes: tuple[Echo, ...] = ()
    no_new_tokens: bool = False

    @property
    def requests(self) -> list[tuple[tuple[int, ...], SamplingParams]]:
        """One a sequence: all of the first prompt, then all of the second. Those of a prompt with a seed get seeds in a row."""
        return [
            (ids, params if params.seed is None else replace(params, seed=(params.seed + place) % SEEDS))
            for ids, params in self.prompts
            for place in range(self.best_of)
        ]

    @property
    def model_logprobs(self) -> bool:
        """Whether log-probabilities play a part. They are the model's own, before penalties, temperature and filters, as OpenAI and vLLM
        have them; sequences compete by the same.
        """
        return self.logprobs is not None or self.best_of > self.choices

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each counted once."""
        return sum(len(ids) for ids, _ in self.prompts)


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as it is repeated: its text, and where in it the text of each of its tokens begins."""

    text: str
    offsets: tuple[int, ...]


def check_common(wanted: OpenAIRequest, service: Service) -> None:
    """Raises ApiError for the first rule that `wanted` breaks by itself, whatever the prompt."""
    settings = service.settings
    refuse_what_is_not_here(wanted.model_extra)
    refuse_adapter(wanted.model, service.model.name)
    if wanted.n is not None and not 1 <= wanted.n <= MAX_CHOICES:
        raise invalid(f"`n` must be from 1 to {MAX_CHOICES}", "n")
    if wanted.stream_options is not None and not wanted.stream:
        raise invalid("`stream_options` needs `stream`", "stream_options")
    _within("temperature", wanted.temperature, 0, 2)
    _within("top_p", wanted.top_p, 0, 1)
    _within("frequency_penalty", wanted.frequency_penalty, -2, 2)
    _within("presence_penalty", wanted.presence_penalty, -2, 2)
    if wanted.top_k is not None and wanted.top_k < -1:
        raise invalid("`top_k` must be above 0, or 0 or -1 for none", "top_k")
    if wanted.typical_p is not None and not 0 < wanted.typical_p <= 1:
        raise invalid("`typical_p` must be above 0 and at most 1", "typical_p")
    if wanted.repetition_penalty is not None and wanted.repetition_penalty <= 0:
        raise invalid("`repetition_penalty` must be above 0", "repetition_penalty")
    stops = wanted.stop or ()
    if len(stops) > settings.max_stop_sequences:
        raise invalid(f"`stop` supports up to {settings.max_stop_sequences} sequences, {len(stops)} were given", "stop")
    if "" in stops:
        raise invalid("`stop` has an empty sequence", "stop")
    if stops and service.model.tokenizer is None:
        raise invalid("`stop` needs a tokenizer, which the model has not; use `stop_token_ids`", "stop")
    vocabulary = service.model.spec.vocabulary
    for name, ids in (("logit_bias", wanted.logit_bias or ()), ("stop_token_ids", wanted.stop_token_ids or ())):
        if len(ids) > MAX_NAMED:
            raise invalid(f"`{name}` must name at most {MAX_NAMED} tokens, not {len(ids)}", name)
        if not all(0 <= token_id < vocabulary for token_id in ids):
            raise invalid(f"`{name}` names a token that the model has not; it has tokens 0 to {vocabulary - 1}", name)
    if wanted.min_tokens is not None and wanted.min_tokens < 0:
        raise invalid("`min_tokens` must be at least 0", "min_tokens")


async def validate_completion(wanted: CompletionRequest, service: Service) -> OpenAIJob:
    """The job of `wanted`, or the first rule that it breaks, as ApiError."""
    service.must_generate()
    check_common(wanted, service)
    settings = service.settings
    choices = wanted.n or 1
    best_of = choices if wanted.best_of is None else wanted.best_of
    if best_of < choices:
        raise invalid(f"`best_of` must be at least `n`, which is {choices}", "best_of")
    if best_of > choices and best_of > settings.max_best_of:
        raise invalid(f"`best_of` above `n` must be at most {settings.max_best_of}, not {best_of}", "best_of")
    if best_of > choices and wanted.stream:
        raise invalid("`best_of` above `n` is not supported when streaming", "best_of")
    if wanted.logprobs is not None and not 0 <= wanted.logprobs <= settings.max_top_n_tokens:
        raise invalid(f"`logprobs` must be from 0 to {settings.max_top_n_tokens}", "logprobs")
    if wanted.max_tokens is not None and wanted.max_tokens < (0 if wanted.echo else 1):
        raise invalid("`max_tokens` must be at least 1, or 0 with `echo`", "max_tokens")
    _check_count(len(wanted.prompt), best_of, service)
    rows = await _tokenised(wanted.prompt, service)
    params = _params(wanted, service, echo=bool(wanted.echo) and wanted.logprobs is not None, top=wanted.logprobs or 0)
    prompts = tuple([_sized(row, params, wanted.max_tokens, MAX_TOKENS, "prompt", service) for row in rows])
    echoes = tuple([await _echo(prompt, row, service) for prompt, row in zip(wanted.prompt, rows, strict=True)]) if wanted.echo else ()
    return OpenAIJob(
        prompts=prompts,
        choices=choices,
        best_of=best_of,
        logprobs=wanted.logprobs,
        echoes=echoes,
        no_new_tokens=wanted.max_tokens == 0,
    )


async def validate_chat(wanted: ChatRequest, service: Service) -> OpenAIJob:
    """As `validate_completion`, for a conversation."""
    service.must_generate()
    check_common(wanted, service)
    refuse_in_messages(wanted.messages)
    most = service.settings.max_top_n_tokens
    if wanted.top_logprobs is not None:
        if not wanted.logprobs:
            raise invalid("`top_logprobs` needs `logprobs`", "top_logprobs")
        if not 0 <= wanted.top_logprobs <= most:
            raise invalid(f"`top_logprobs` must be from 0 to {most}", "top_logprobs")
    new, name = (wanted.max_tokens, "max_tokens")
    if wanted.max_completion_tokens is not None:
        new, name = (wanted.max_completion_tokens, "max_completion_tokens")
    if new is not None and new < 1:
        raise invalid(f"`{name}` must be at least 1", name)
    choices = wanted.n or 1
    _check_count(1, choices, service)
    messages = _plain_texts(wanted.messages)
    ids = await service.tokenise_made(lambda: service.chat.text(messages))
    params = _params(wanted, service, echo=False, top=wanted.top_logprobs or 0)
    return OpenAIJob(
        prompts=(_sized(ids, params, new, None, "messages", service),),
        choices=choices,
        best_of=choices,
        logprobs=(wanted.top_logprobs or 0) if wanted.logprobs else None,
    )


def _within(name: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise invalid(f"`{name}` must be from {least} to {most}", name)


def _check_count(prompts: int, sequences: int, service: Service) -> None:
    """Raises ApiError where so many sequences could never run together, however idle the server is."""
    if prompts * sequences > service.permits.total:
        raise invalid(
            f"the request asks for {prompts * sequences} sequences, and the server takes at most {service.permits.total} at a time", "n"
        )


async def _tokenised(prompts: Sequence[Prompt], service: Service) -> list[list[int]]:
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts:
        return [list(prompt) for prompt in prompts if not isinstance(prompt, str)]
    if "" in texts:
        raise invalid("`prompt` must not be empty", "prompt")
    return [one_beginning(row, service) for row in await service.tokenise_all(texts)]


def one_beginning(ids: list[int], service: Service) -> list[int]:
    """The ids with one token for the beginning of a sequence, where a text that brought its own was given another."""
    tokenizer = service.model.tokenizer
    begin = None if tokenizer is None else tokenizer.bos_token_id
    return ids[1:] if begin is not None and ids[:2] == [begin, begin] else ids


async def _echo(prompt: Prompt, row: Sequence[int], service: Service) -> Echo:
    if isinstance(prompt, str):
        spans = await service.spans(prompt)
        return Echo(prompt, tuple(start for _, start, _ in spans[-len(row) :]))
    tokenizer = service.model.tokenizer
    if tokenizer is None:
        return Echo("", (0,) * len(row))
    pieces = await service.pieces(row)
    ends = itertools.accumulate(map(len, pieces), initial=0)
    return Echo("".join(pieces), tuple(ends)[: len(row)])


def _sized(
    ids: Sequence[int], params: SamplingParams, new: int | None, default: int | None, param: str, service: Service
) -> tuple[tuple[int, ...], SamplingParams]:
    """A prompt with its parameters. default: of `new`; None for as many as fit. Raises ApiError unless both have room."""
    longest, total = service.settings.input_length, service.settings.total_tokens
    if len(ids) > longest:
        raise _too_long(f"`{param}` must have at most {longest} tokens, not {len(ids)}", param)
    room = total - len(ids)
    if new is None:
        new = room if default is None else min(default, room)
    if len(ids) + new > total:
        raise _too_long(f"prompt and new tokens must be at most {total} together, not {len(ids)} and {new}", param)
    service.check_prompt(ids)
    new = max(new, 1)
    if params.min_new_tokens > new:
        raise invalid(f"`min_tokens` must be at most the number of new tokens, {new}", "min_tokens")
    return tuple(ids), replace(params, max_new_tokens=new)


def _too_long(message: str, param: str) -> ApiError:
    return invalid(message, param, "context_length_exceeded")


def _params(wanted: OpenAIRequest, service: Service, *, echo: bool, top: int) -> SamplingParams:
    temperature = 1.0 if wanted.temperature is None else wanted.temperature
    # Nothing is left below a share of 0 but the likeliest token.
    greedy = temperature == 0 or wanted.top_p == 0
    try:
        return SamplingParams(
            max_new_tokens=service.settings.total_tokens,
            do_sample=not greedy,
            temperature=0.0 if greedy else temperature,
            top_k=max(wanted.top_k or 0, 0),
            top_p=wanted.top_p or 1.0,
            typical_p=wanted.typical_p or 1.0,
            repetition_penalty=wanted.repetition_penalty or 1.0,
            frequency_penalty=wanted.frequency_penalty or 0.0,
            presence_penalty=wanted.presence_penalty or 0.0,
            logit_bias=wanted.logit_bias or None,
            seed=None if wanted.seed is None else wanted.seed % SEEDS,
            stop=wanted.stop or (),
            stop_token_ids=tuple(wanted.stop_token_ids or ()),
            ignore_eos=bool(wanted.ignore_eos),
            min_new_tokens=min(wanted.min_tokens or 0, service.settings.total_tokens),
            prompt_logprobs=echo,
            top_logprobs=top,
        )
    except UserError as error:
        raise invalid(str(error)) from None


def _plain_texts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with texts for content, as templates expect it. Raises ApiError for parts that are no text."""
    return [
        {**message, "content": _joined(message["content"], place)} if isinstance(message.get("content"), list) else message
        for place, message in enumerate(messages)
    ]


def _joined(parts: Sequence[Mapping[str, Any]], place: int) -> str:
    if any(part["type"] != "text" for part in parts):
        raise invalid(f"`messages`: number {place} has a part that is no text; this server takes text alone", "messages")
    return "".join([part["text"] for part in parts])
