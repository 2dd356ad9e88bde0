"""What the two processes of a server say to each other.

Commands go to the engine, events come from it. Each is one frame (`frames.py`). Everything is plain data: both ends are this package,
of one version, joined by a socket pair that nobody else can open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferometer.model.formats import WeightFormat
from inferometer.schedule.completion import FinishReason, TopLogprobs
from inferometer.schedule.request import Request
from inferometer.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Begin:
    """The first command: what to load and run."""

    settings: ServerSettings


@dataclass(frozen=True, slots=True)
class Add:
    """Queue these requests."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop these requests, waiting or running; unknown ids are ignored."""

    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Embed:
    """Embed these texts, each a list of at least one token id, in one answer."""

    request_id: int
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer with a Pong, whatever the engine's thread does meanwhile."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Drop everything and end the process."""


Command = Begin | Add | Abort | Embed | Ping | Stop


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and warm. What it turned out to be.

    pages: of page_size tokens each. dtype, device: as they print ("float32", "cuda:0"). device_name: of the hardware.
    page_bytes: over all layers. seats: most sequences that run together. device_slug: the catalogue's name of the hardware. Pages and
    seats are 0 for an encoder, which has none. text_limit: most tokens of a text that an encoder takes in, None for any number.
    weights: in few bits, None where they are not. kv_dtype: of the cache, None for the activations'. shards: devices that share the model;
    pages and bytes are those of one.
    """

    pages: int
    page_size: int
    page_bytes: int
    seats: int
    dtype: str
    device: str
    device_name: str | None
    device_slug: str | None
    text_limit: int | None = None
    weights: WeightFormat | None = None
    kv_dtype: str | None = None
    shards: int = 1


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not be started, for a reason that is its user's to mend (`user`) or not. The process ends behind it."""

    message: str
    user: bool


@dataclass(frozen=True, slots=True)
class Load:
    """The engine behind a step. Counters (preemptions, hit_tokens) only grow.

    waiting: requests without a seat. running: sequences with one. sweep_ms: since the step before, or since there was work; over a
    stretch of work they add up to its wall time. prompt_tokens, decode_tokens: tokens of both kinds that the step's sweep ran.
    context_tokens: the keys that its decoding tokens read, over all sequences. pieces: prompts, or pieces of prompts, in the sweep;
    piece_context_tokens: tokens of those prompts that were in the cache before.
    """

    waiting: int
    running: int
    pages_in_use: int
    preemptions: int
    hit_tokens: int
    sweep_ms: float
    prompt_tokens: int
    decode_tokens: int
    context_tokens: int
    pieces: int
    piece_context_tokens: int


@dataclass(frozen=True, slots=True)
class Extra:
    """What an emission carries besides its token, where it carries anything."""

    top: TopLogprobs = ()
    prompt_logprobs: tuple[float | None, ...] | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step: everything it emitted, in columns, as most emissions are just a number or two.

    started: requests that got their turn, with the prompt tokens of each that the prefix cache had. request_ids, token_ids, logprobs:
    one entry an emission, in order. extras: by place among them. One that emits nothing and has no tokens only tells the load, where
    aborts have left nothing to do.
    """

    started: tuple[tuple[int, int], ...]
    request_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    extras: Mapping[int, Extra]
    load: Load


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that could never run, in one line for its sender."""

    request_id: int
    message: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A step failed, and took these requests with it; the engine goes on. message: for the log."""

    request_ids: tuple[int, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A rank of the model has failed, and the others have ended with it. message: which, and why. The process ends behind it."""

    message: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """The answer to Embed: float32 (rows, hidden), as bytes."""

    request_id: int
    hidden: int
    vectors: bytes


@dataclass(frozen=True, slots=True)
class Pong:
    """The process lives."""


Event = Ready | Failed | Step | Refused | Broken | Lost | Embedded | Pong
