"""The tokens of a step: on the device, on their way to the host, and there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inferometer.kernels.token_rows import Places

Tops = list[tuple[tuple[int, float], ...]]


class Tokens(NamedTuple):
    """What the host has read of a step: for each row its token, the token's log-probability and the likeliest pairs of both."""

    token_ids: list[int]
    logprobs: list[float]
    tops: Tops


@dataclass(frozen=True, slots=True)
class Sampled:
    """One step's tokens, on the device.

    token_ids: int64 [rows]. logprobs: float32 [rows], log-softmax of the processed scores (all penalties and, where the row
    samples, filters) at the token, or of the model's own where the row asked for that. top_ids, top_logprobs: int64 and float32
    [rows, most tokens that a row asked for], best first, under the same scores; None if nobody asked. top_counts: how many each row
    asked for.
    packed: int32, where tokens and log-probabilities of these rows and maybe more lie together; None where they do not.
    """

    token_ids: Tensor
    logprobs: Tensor
    top_ids: Tensor | None
    top_logprobs: Tensor | None
    top_counts: tuple[int, ...]
    packed: Tensor | None = None

    @classmethod
    def at(cls, places: Places, rows: int) -> Sampled:
        """The tokens of the first `rows` rows at these places, of which none asked for likeliest ones."""
        return cls(places.token_ids[:rows], places.logprobs[:rows], None, None, (0,) * rows, places.packed)

    def fetch(self) -> Fetched:
        """Starts the way to the host behind the work that is queued now, as one copy. Later changes of these tensors do not matter."""
        if self.packed is None:
            whole = [part for part in (self.token_ids, self.top_ids) if part is not None]
            real = [part for part in (self.logprobs, self.top_logprobs) if part is not None]
            # The 8-byte numbers first, so that they stay aligned.
            packed = torch.cat([part.contiguous().view(torch.int32).flatten() for part in (*whole, *real)])
        else:
            packed = self.packed
        if packed.device.type != "cuda":
            return Fetched(packed.clone() if packed is self.packed else packed, None, self.top_counts)
        host = torch.empty(packed.shape, dtype=torch.int32, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        event: Any = torch.cuda.Event  # untyped in torch
        arrived = event()
        arrived.record(torch.cuda.current_stream(packed.device))
        return Fetched(host, arrived, self.top_counts)

    def tops(self) -> Tops:
        """The likeliest (token, log-probability) pairs of each row, as many as it asked for. Waits for the device."""
        return self.fetch().read().tops


@dataclass(frozen=True, slots=True)
class Fetched:
    """A step's tokens under way. packed: int32 on the host, the bits of token ids and log-probabilities. arrived: recorded on a
    GPU behind the copy, None where nothing is under way.
    """

    packed: Tensor
    arrived: torch.cuda.Event | None
    top_counts: tuple[int, ...]

    def read(self) -> Tokens:
        """The tokens. Waits until they are there, and for nothing that was queued after them."""
        if self.arrived is not None:
            self.arrived.synchronize()
        rows = len(self.top_counts)
        count = self.packed.numel() // 3  # numbers of each kind: a token and its likeliest ones, for each row and maybe rows behind
        token_ids = self.packed[: 2 * count].view(torch.int64).tolist()
        logprobs = self.packed[2 * count :].view(torch.float32).tolist()
        if not any(self.top_counts):
            return Tokens(token_ids[:rows], logprobs[:rows], [()] * rows)
        width = count // rows - 1
        starts = range(rows, count, width)
        tops = [
            tuple(zip(token_ids[at : at + wanted], logprobs[at : at + wanted], strict=True))
            for at, wanted in zip(starts, self.top_counts, strict=True)
        ]
        return Tokens(token_ids[:rows], logprobs[:rows], tops)
