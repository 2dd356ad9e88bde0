"""The bodies of text-generation-inference's routes."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from inferometer.server.body import Body

_U32: Final = 2**32 - 1
_U64: Final = 2**64 - 1
_I32: Final = 2**31

Number = Annotated[float, Field(ge=-3.4e38, le=3.4e38)]
"""A number that 32 bits hold."""


class GenerateParameters(Body):
    """How to continue a prompt. null is as good as left out. The rules are `tgi_validation`'s."""

    best_of: Annotated[int, Field(ge=0, le=_U64)] | None = None
    temperature: Number | None = None
    repetition_penalty: Number | None = None
    frequency_penalty: Number | None = None
    top_k: Annotated[int, Field(ge=-_I32, lt=_I32)] | None = None
    top_p: Number | None = None
    typical_p: Number | None = None
    do_sample: bool | None = None
    max_new_tokens: Annotated[int, Field(ge=0, le=_U32)] | None = None
    return_full_text: bool | None = None
    # One wrong entry is enough to know: a description of each of a million would take seconds.
    stop: Annotated[list[str], Field(fail_fast=True)] | None = None
    truncate: Annotated[int, Field(ge=0, le=_U64)] | None = None
    watermark: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: Annotated[int, Field(ge=0, le=_U64)] | None = None
    top_n_tokens: Annotated[int, Field(ge=0, le=_U32)] | None = None
    grammar: object | None = None
    adapter_id: str | None = None


class GenerateRequest(Body):
    """A prompt, and how to continue it."""

    inputs: str
    parameters: GenerateParameters | None = None


class CompatRequest(GenerateRequest):
    """As the root route takes it: with the choice of a stream."""

    stream: bool | None = None


class TokenizeRequest(Body):
    """A text to be cut into tokens."""

    inputs: str
    add_special_tokens: bool | None = None
    parameters: GenerateParameters | None = None
