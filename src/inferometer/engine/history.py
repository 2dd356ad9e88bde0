"""What a batch must remember of the tokens of its sequences, on the device and only as far as somebody asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inferometer.engine.sampling_row import SamplingRow
from inferometer.nn.upload import upload


@dataclass(frozen=True, slots=True)
class History:
    """Three memories, None where no row needs them; a row that needs none has whatever it has in a memory that others need.

    seen: bool [rows, vocabulary], tokens of prompt and continuation. counts: int32 [rows, vocabulary], how often each was
    generated. previous: int64 [rows], the newest token.
    """

    seen: Tensor | None
    counts: Tensor | None
    previous: Tensor | None

    @classmethod
    def build(cls, rows: Sequence[SamplingRow], vocabulary: int, device: torch.device) -> History:
        """The memories of new rows. Prompt tokens outside the vocabulary are ignored: no score answers to them."""
        seen = counts = previous = None
        if any(row.penalises_repetition for row in rows):
            seen = torch.zeros(len(rows), vocabulary, dtype=torch.bool, device=device)
            held = [(*row.prompt_token_ids, *row.generated_token_ids) if row.penalises_repetition else () for row in rows]
            seen.view(-1).scatter_(0, _places(held, vocabulary, device), True)
        if any(row.penalises_counts for row in rows):
            counts = torch.zeros(len(rows), vocabulary, dtype=torch.int32, device=device)
            generated = [row.generated_token_ids if row.penalises_counts else () for row in rows]
            places = _places(generated, vocabulary, device)
            counts.view(-1).scatter_add_(0, places, torch.ones_like(places, dtype=torch.int32))
        if any(row.params.watermark for row in rows):
            newest = [(*row.prompt_token_ids[-1:], *row.generated_token_ids[-1:])[-1:] or (0,) for row in rows]
            previous = upload([token_id for (token_id,) in newest], torch.int64, device)
        return cls(seen, counts, previous)

    def update(self, token_ids: Tensor) -> None:
        """Takes in one new token a row, int64 [rows], in place."""
        column = token_ids[:, None]
        if self.seen is not None:
            self.seen.scatter_(1, column, True)
        if self.counts is not None:
            self.counts.scatter_(1, column, self.counts.gather(1, column) + 1)
        if self.previous is not None:
            self.previous.copy_(token_ids)

    def select(self, index: Tensor, rows: Sequence[SamplingRow]) -> History:
        """The memories of the rows at `index`, int64 [rows to keep] on the CPU, which are `rows`; what none of them needs is dropped."""
        return History(
            _take(self.seen, index, rows, lambda row: row.penalises_repetition),
            _take(self.counts, index, rows, lambda row: row.penalises_counts),
            _take(self.previous, index, rows, lambda row: row.params.watermark),
        )

    def extend(self, other: History, rows: int, others: int) -> History:
        """These memories, of `rows` rows, followed by those of `others` other ones."""
        return History(
            _join(self.seen, other.seen, rows, others),
            _join(self.counts, other.counts, rows, others),
            _join(self.previous, other.previous, rows, others),
        )


def _places(ids: Sequence[Sequence[int]], vocabulary: int, device: torch.device) -> Tensor:
    """Where the tokens of all rows lie in a memory of [rows, vocabulary] that is flattened."""
    flat = torch.tensor([token_id for token_ids in ids for token_id in token_ids], dtype=torch.int64)
    rows = torch.arange(len(ids)).repeat_interleave(torch.tensor([len(token_ids) for token_ids in ids], dtype=torch.int64))
    places = (rows * vocabulary + flat)[(flat >= 0) & (flat < vocabulary)]
    return upload(places, torch.int64, device)


def _take(memory: Tensor | None, index: Tensor, rows: Sequence[SamplingRow], needs: Callable[[SamplingRow], bool]) -> Tensor | None:
    if memory is None or not any(map(needs, rows)):
        return None
    return memory.index_select(0, upload(index, torch.int64, memory.device))


def _join(first: Tensor | None, second: Tensor | None, rows: int, others: int) -> Tensor | None:
    if first is None and second is None:
        return None
    if first is None:
        assert second is not None
        first = second.new_zeros(rows, *second.shape[1:])
    if second is None:
        second = first.new_zeros(others, *first.shape[1:])
    return torch.cat((first, second))
