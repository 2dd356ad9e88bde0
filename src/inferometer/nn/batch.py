"""A ragged batch: tokens of several sequences in one row, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """The tokens of one sweep, sequence after sequence.

    token_ids, positions: int64 (tokens,), on the device. Position counts from 0 within the sequence.
    query_lengths: tokens of each sequence in this sweep. context_lengths: its tokens once the sweep has run, those included.
    first_slot: cache slot of the first sequence; the others follow it.
    slots: int64 (tokens,), the cache slot of each token.
    token_types: int64 (tokens,), encoders only; zeros if None.
    rotary_lengths: int64 (tokens,), the sequence length that length-dependent rotary scaling sees at each token. It is
    max(prompt length, position + 1), so that neither chunking nor recomputing a sequence changes it.
    """

    token_ids: Tensor
    positions: Tensor
    query_lengths: tuple[int, ...]
    context_lengths: tuple[int, ...]
    first_slot: int
    slots: Tensor
    rotary_lengths: Tensor
    token_types: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.query_lengths) != len(self.context_lengths) or not self.query_lengths:
            raise ValueError("a batch needs at least one sequence, each with a query and a context length")
        if any(q < 1 or c < q for q, c in zip(self.query_lengths, self.context_lengths, strict=True)):
            raise ValueError("each sequence needs at least one query token, and a context that includes its queries")
        if sum(self.query_lengths) != self.token_ids.numel():
            raise ValueError(f"{sum(self.query_lengths)} query tokens are described but {self.token_ids.numel()} given")

    @property
    def last_tokens(self) -> Tensor:
        """Index of each sequence's last token in this sweep, int64 (sequences,)."""
        ends = torch.tensor(self.query_lengths, device=self.token_ids.device).cumsum(0)
        return ends - 1


def prompt_batch(
    prompts: Sequence[Sequence[int]],
    device: torch.device,
    *,
    first_slot: int = 0,
    token_types: Sequence[Sequence[int]] | None = None,
) -> RaggedBatch:
    """Whole prompts, nothing of them cached yet. Raises ValueError on an empty prompt."""
    lengths = tuple(len(prompt) for prompt in prompts)
    count = torch.tensor(lengths)
    starts = count.cumsum(0) - count
    total = int(count.sum())
    positions = torch.arange(total) - starts.repeat_interleave(count)
    return RaggedBatch(
        token_ids=torch.tensor([token for prompt in prompts for token in prompt]).to(device),
        positions=positions.to(device),
        query_lengths=lengths,
        context_lengths=lengths,
        first_slot=first_slot,
        slots=torch.arange(first_slot, first_slot + len(lengths)).repeat_interleave(count).to(device),
        rotary_lengths=count.repeat_interleave(count).to(device),
        token_types=None if token_types is None else torch.tensor([kind for row in token_types for kind in row]).to(device),
    )


def decode_batch(
    token_ids: Tensor, positions: Tensor, context_lengths: tuple[int, ...], slots: Tensor, rotary_lengths: Tensor
) -> RaggedBatch:
    """One token a sequence, in slots 0 onwards. The tensors stay on the device between steps."""
    return RaggedBatch(
        token_ids=token_ids,
        positions=positions,
        query_lengths=(1,) * len(context_lengths),
        context_lengths=context_lengths,
        first_slot=0,
        slots=slots,
        rotary_lengths=rotary_lengths,
    )
