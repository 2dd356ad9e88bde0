"""text-generation-inference's rules, in its order: the first one broken is what the sender is told."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.errors import UserError
from inferometer.schedule.sampling import SamplingParams
from inferometer.server.failures import invalid
from inferometer.server.service import Service
from inferometer.server.tgi_schema import GenerateParameters, GenerateRequest

MAX_NEW_TOKENS = 20


@dataclass(frozen=True, slots=True)
class Job:
    """A valid request: what goes to the engine, and how its sender wants to be told.

    add_prompt: what the generated text is put behind, "" unless the full text is asked for.
    """

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    best_of: int
    details: bool
    add_prompt: str
    inputs_characters: int


def check_parameters(wanted: GenerateParameters, service: Service, *, stream: bool) -> int:
    """Raises ApiError for the first rule that `wanted` breaks by itself, whatever the prompt; else returns best_of."""
    settings = service.settings
    best_of = 1 if wanted.best_of is None else wanted.best_of
    if best_of > 1:
        if stream:
            raise invalid("`best_of` != 1 is not supported when streaming tokens", "best_of")
        if settings.max_best_of == 1:
            raise invalid("`best_of` != 1 is not allowed for this endpoint", "best_of")
        if best_of > settings.max_best_of:
            raise invalid(f"`best_of` must be at most {settings.max_best_of}, not {best_of}", "best_of")
    if wanted.decoder_input_details and stream:
        raise invalid("`decoder_input_details` is not supported when streaming tokens", "decoder_input_details")
    if best_of == 0:
        raise invalid("`best_of` must be at least 1", "best_of")
    if best_of > 1 and not _names_sampling(wanted):
        raise invalid("`best_of` > 1 needs sampling: set `do_sample`, `temperature`, `top_k`, `top_p` or `typical_p`", "best_of")
    if wanted.temperature is not None and wanted.temperature <= 0:
        raise invalid("`temperature` must be above 0", "temperature")
    if wanted.repetition_penalty is not None and wanted.repetition_penalty <= 0:
        raise invalid("`repetition_penalty` must be above 0", "repetition_penalty")
    if wanted.frequency_penalty is not None and not -2 <= wanted.frequency_penalty <= 2:
        raise invalid("`frequency_penalty` must be from -2 to 2", "frequency_penalty")
    if wanted.top_p is not None and not 0 < wanted.top_p < 1:
        raise invalid("`top_p` must be above 0 and below 1", "top_p")
    if wanted.typical_p is not None and not 0 < wanted.typical_p < 1:
        raise invalid("`typical_p` must be above 0 and below 1", "typical_p")
    if wanted.top_k is not None and wanted.top_k <= 0:
        raise invalid("`top_k` must be above 0", "top_k")
    if wanted.max_new_tokens == 0:
        raise invalid("`max_new_tokens` must be above 0", "max_new_tokens")
    if len(wanted.stop or ()) > settings.max_stop_sequences:
        raise invalid(f"`stop` supports up to {settings.max_stop_sequences} sequences, {len(wanted.stop or ())} were given", "stop")
    if "" in (wanted.stop or ()):
        raise invalid("`stop` has an empty sequence", "stop")
    if best_of > 1 and wanted.seed is not None:
        raise invalid("`seed` must not be set when `best_of` > 1: each sequence has its own", "seed")
    if (wanted.top_n_tokens or 0) > settings.max_top_n_tokens:
        raise invalid(f"`top_n_tokens` must be at most {settings.max_top_n_tokens}", "top_n_tokens")
    if wanted.grammar is not None:
        raise invalid("`grammar` is not supported by this server", "grammar")
    if wanted.adapter_id is not None:
        raise invalid("`adapter_id` is not supported by this server", "adapter_id")
    return best_of


async def validate(request: GenerateRequest, service: Service, *, stream: bool, full_text: bool = False) -> Job:
    """The job of `request`, or the first rule that it breaks, as ApiError. full_text: what an unset return_full_text means."""
    service.must_generate()
    settings = service.settings
    wanted = request.parameters or GenerateParameters()
    best_of = check_parameters(wanted, service, stream=stream)
    if not request.inputs:
        raise invalid("`inputs` must not be empty", "inputs")
    longest, total = settings.input_length, settings.total_tokens
    if wanted.truncate is not None and not 0 < wanted.truncate <= longest:
        raise invalid(f"`truncate` must be above 0 and at most {longest}, not {wanted.truncate}", "truncate")
    ids = await service.tokenise(request.inputs)
    if wanted.truncate is not None:
        ids = ids[-wanted.truncate :]
    new = MAX_NEW_TOKENS if wanted.max_new_tokens is None else wanted.max_new_tokens
    if len(ids) + new > total:
        raise invalid(
            f"`inputs` tokens + `max_new_tokens` must be at most {total}, not {len(ids)} `inputs` tokens and {new} `max_new_tokens`",
            "max_new_tokens",
        )
    if len(ids) > longest:
        raise invalid(f"`inputs` must have at most {longest} tokens, not {len(ids)}", "inputs")
    service.check_prompt(ids)
    full = full_text if wanted.return_full_text is None else wanted.return_full_text
    return Job(
        prompt_token_ids=tuple(ids),
        params=_params(wanted, new, best_of),
        best_of=best_of,
        details=bool(wanted.details),
        add_prompt=request.inputs if full else "",
        inputs_characters=len(request.inputs),
    )


def _names_sampling(wanted: GenerateParameters) -> bool:
    filters = (wanted.temperature, wanted.top_k, wanted.top_p, wanted.typical_p)
    return bool(wanted.do_sample) or any(value is not None for value in filters)


def _params(wanted: GenerateParameters, new: int, best_of: int) -> SamplingParams:
    try:
        return SamplingParams(
            max_new_tokens=new,
            # Sequences that compete must differ, also where a temperature of 1 alone asked for that.
            do_sample=bool(wanted.do_sample) or best_of > 1,
            temperature=1.0 if wanted.temperature is None else wanted.temperature,
            top_k=wanted.top_k or 0,
            top_p=1.0 if wanted.top_p is None else wanted.top_p,
            typical_p=1.0 if wanted.typical_p is None else wanted.typical_p,
            repetition_penalty=1.0 if wanted.repetition_penalty is None else wanted.repetition_penalty,
            frequency_penalty=wanted.frequency_penalty or 0.0,
            seed=wanted.seed,
            stop=tuple(wanted.stop or ()),
            prompt_logprobs=bool(wanted.decoder_input_details),
            top_logprobs=wanted.top_n_tokens or 0,
            watermark=bool(wanted.watermark),
        )
    except UserError as error:
        raise invalid(str(error)) from None
