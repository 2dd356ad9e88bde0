"""What the runner asks of a stack that runs a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from inferometer.schedule.sampling import SamplingParams

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Continuation:
    """Generated tokens (rows, steps) and the log-probability that each was drawn with, float32 of the same shape."""

    tokens: tuple[tuple[int, ...], ...]
    log_probabilities: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class PageUse:
    """A paged KV cache: the pages it has, the most that a batch had in use at once, tokens and bytes of a page over all layers.

    device: how many of the pages lie on the device, where those go out first; None for all.
    """

    pages: int
    peak: int
    page_size: int
    page_bytes: int
    device: int | None = None

    @property
    def idle_bytes(self) -> int:
        """Bytes on the device of pages that were never in use."""
        there = self.pages if self.device is None else self.device
        return max(0, there - self.peak) * self.page_bytes


class Backend(Protocol):
    """One loaded model. A batch runs `prefill`, any number of `decode` and `finish`, or `generate` and `finish`; `abandon` drops it
    after a failure.

    Work may still be queued on the device when a call returns; `synchronise` waits for it. Every row of a batch has the same length.
    `output_width` is the vocabulary (an encoder's hidden size). A backend may also say by `coarsest`, a dtype, that something in it rounds
    more coarsely than the dtype that it was asked for; and by `preparations`, a number that grows whenever it compiles, records or measures
    what later runs find, that a run was not yet like those to come. One that is not `phased` may say by `begun`, after `generate`, how many
    seconds it took until every row had its first token, and how many tokens there were by then.
    """

    name: str
    stack_version: str
    device: torch.device
    output_width: int
    encoder: bool

    @property
    def resident_bytes(self) -> int:
        """Bytes that it keeps on the device between batches: weights, and a cache that it does not give back."""
        ...

    @property
    def phased(self) -> bool:
        """Whether batches such as were prepared for compute all prompts before anything decodes, so that the two have times of their
        own.
        """
        ...

    def prepare(self, rows: int, tokens: int) -> None:
        """Makes room for batches of `rows` sequences of up to `tokens` tokens; raises where there is none."""
        ...

    def prefill(self, prompts: Prompts, params: SamplingParams) -> None:
        """All prompts and the first token of every row."""
        ...

    def fill(self, prompts: Prompts, params: SamplingParams) -> None:
        """As `prefill`, but the keys and values of the prompts are random instead of computed, wherever that saves time.

        Asked of backends alone whose entry says `decode_at`.
        """
        ...

    def decode(self) -> None:
        """One more token for every row, whatever the last one was."""
        ...

    def generate(self, prompts: Prompts, params: SamplingParams) -> None:
        """All prompts and all tokens of every row, in the backend's own order."""
        ...

    def page_use(self) -> PageUse | None:
        """The pages of the last batch; None without a paged cache."""
        ...

    def finish(self) -> Sequence[Sequence[int]]:
        """The generated tokens of every row; frees what the batch held."""
        ...

    def abandon(self) -> None:
        """Frees what a batch in progress and its cache hold; does nothing without any."""
        ...

    def forward(self, prompts: Prompts, *, loss: bool) -> float | None:
        """One forward with logits at every position (an encoder: hidden states, and the pooler's output where there is one).

        With `loss`, also the mean next-token cross-entropy over the rows, which it returns; else None.
        """
        ...

    def logits(self, prompts: Prompts, *, last_only: bool) -> Tensor:
        """float32 logits (rows, length or 1, vocabulary) of one forward without a cache, on the device.

        For an encoder the hidden states, and after them, as one more position, the pooler's output where there is one.
        """
        ...

    def continuation(self, prompts: Prompts, steps: int) -> Continuation:
        """Greedy tokens through the cached path that `prefill` and `decode` take, with their log-probabilities."""
        ...

    def synchronise(self) -> None:
        """Returns when the device has done all that was asked."""
        ...

    def close(self) -> None:
        """Frees the model."""
        ...


class Reference(Backend, Protocol):
    """A backend that others are held against."""

    def exact(self) -> AbstractContextManager[None]:
        """While it lasts, `logits` are computed in float32 from the same weights. Raises where there is no memory for that."""
        ...
