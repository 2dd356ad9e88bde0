"""A ragged batch: tokens of several sequences in one row, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from inferometer.kernels.embed import Entries, Tokens
from inferometer.nn.upload import upload

if TYPE_CHECKING:
    from inferometer.nn.parts import Parts


@dataclass(frozen=True, slots=True)
class CachedRows:
    """Where a sweep's sequences lie in the paged cache. All tensors are on the device.

    table: int32 (seats, stride), the pages of every running sequence, one after another. seats: int32 (sequences,), the row of the
    table that is a sequence's. contexts: int32 (sequences,), its tokens once the sweep has run; 0 marks a row of padding.
    starts: int32 (sequences + 1,), where its tokens begin in the sweep. places: int64 (tokens,), where a token's key and value go in the
    cache; negative for padding. apart: whether every sequence runs one token, and none reads pages that another writes in this sweep.
    entries: what the table has yet to hold, which the sweep's first launch writes: of each sequence at most the page that its token
    goes to; None where it holds all.
    brought: the sweep's pages that come from the host layer by layer; None where all are on the device. Else table, seats and places are
    not read: each of its parts has its own.
    """

    table: Tensor
    seats: Tensor
    contexts: Tensor
    starts: Tensor
    places: Tensor
    apart: bool = False
    entries: Entries | None = None
    brought: Parts | None = None


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """The tokens of one sweep, sequence after sequence.

    token_ids, positions: int64 (tokens,), on the device. Position counts from 0 within the sequence. A negative token_id is the newest
    token of seat -1 - token_id. newest: int64 (seats,), those tokens; None where no token_id is negative.
    query_lengths: tokens of each sequence in this sweep. context_lengths: its tokens once the sweep has run, those included; where the
    device alone knows them (a captured sweep), the most that they can be.
    rotary_lengths: int64 (tokens,), the sequence length that length-dependent rotary scaling sees at each token. It is
    max(prompt length, position + 1), so that neither chunking nor recomputing a sequence changes it.
    token_types: int64 (tokens,), encoders only; zeros if None.
    rows: where keys and values go in a cache; None for a sweep without one, whose sequences are whole.
    """

    token_ids: Tensor
    positions: Tensor
    query_lengths: tuple[int, ...]
    context_lengths: tuple[int, ...]
    rotary_lengths: Tensor
    token_types: Tensor | None = None
    rows: CachedRows | None = None
    newest: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.query_lengths) != len(self.context_lengths) or not self.query_lengths:
            raise ValueError("a batch needs at least one sequence, each with a query and a context length")
        if any(q < 1 or c < q for q, c in zip(self.query_lengths, self.context_lengths, strict=True)):
            raise ValueError("each sequence needs at least one query token, and a context that includes its queries")
        if sum(self.query_lengths) != self.token_ids.numel():
            raise ValueError(f"{sum(self.query_lengths)} query tokens are described but {self.token_ids.numel()} given")
        if self.rows is None and self.query_lengths != self.context_lengths:
            raise ValueError("a sequence with earlier tokens needs the cache that holds them")

    @property
    def tokens(self) -> Tokens:
        """As an embedding takes them."""
        return Tokens(self.token_ids, self.newest)

    @property
    def last_tokens(self) -> Tensor:
        """Index of each sequence's last token in this sweep, int64 (sequences,)."""
        return upload(torch.tensor(self.query_lengths).cumsum(0) - 1, torch.int64, self.token_ids.device)


def flat_tokens(prompts: Sequence[Sequence[int]]) -> Tensor:
    """int64 (tokens,) on the host, prompt after prompt. By numpy, which reads a list of numbers in a sixth of torch's time."""
    return torch.from_numpy(np.fromiter(chain.from_iterable(prompts), np.int64, sum(map(len, prompts))))


def prompt_batch(
    prompts: Sequence[Sequence[int]], device: torch.device, *, token_types: Sequence[Sequence[int]] | None = None
) -> RaggedBatch:
    """Whole prompts for a sweep without a cache. Raises ValueError on an empty prompt."""
    lengths = tuple(len(prompt) for prompt in prompts)
    count = np.array(lengths, dtype=np.int64)
    # By numpy: torch would wake a thread for each processor to repeat a few numbers, milliseconds on a busy host.
    positions = np.arange(count.sum()) - np.repeat(count.cumsum() - count, count)
    return RaggedBatch(
        token_ids=upload(flat_tokens(prompts), torch.int64, device),
        positions=upload(torch.from_numpy(positions), torch.int64, device),
        query_lengths=lengths,
        context_lengths=lengths,
        rotary_lengths=upload(torch.from_numpy(np.repeat(count, count)), torch.int64, device),
        token_types=None if token_types is None else upload([kind for row in token_types for kind in row], torch.int64, device),
    )


def paged_prompt(prompt: Sequence[int], page_size: int, device: torch.device) -> RaggedBatch:
    """A whole prompt for a sweep over an empty cache, in its first pages. Raises ValueError on an empty prompt."""
    batch, count = prompt_batch([prompt], device), len(prompt)
    rows = CachedRows(
        table=torch.arange(-(-count // page_size), dtype=torch.int32, device=device)[None],
        seats=torch.zeros(1, dtype=torch.int32, device=device),
        contexts=torch.full((1,), count, dtype=torch.int32, device=device),
        starts=torch.tensor([0, count], dtype=torch.int32, device=device),
        places=torch.arange(count, device=device),
    )
    return replace(batch, rows=rows)
