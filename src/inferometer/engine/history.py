"""What a batch must remember of the tokens of its sequences, on the device and only as far as somebody asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inferometer.engine.sampling_row import SamplingRow


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
            seen[_pairs(held, vocabulary, device)] = True
        if any(row.penalises_counts for row in rows):
            counts = torch.zeros(len(rows), vocabulary, dtype=torch.int32, device=device)
            generated = [row.generated_token_ids if row.penalises_counts else () for row in rows]
            pairs = _pairs(generated, vocabulary, device)
            counts.index_put_(pairs, torch.ones_like(pairs[0], dtype=torch.int32), accumulate=True)
        if any(row.params.watermark for row in rows):
            newest = [(*row.prompt_token_ids[-1:], *row.generated_token_ids[-1:])[-1:] or (0,) for row in rows]
            previous = torch.tensor([token_id for (token_id,) in newest], dtype=torch.int64, device=device)
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
        """The memories of the rows at `index`, which are `rows`; what none of them needs is dropped."""
        return History(
            _take(self.seen, index, any(row.penalises_repetition for row in rows)),
            _take(self.counts, index, any(row.penalises_counts for row in rows)),
            _take(self.previous, index, any(row.params.watermark for row in rows)),
        )

    def extend(self, other: History, rows: int, others: int) -> History:
        """These memories, of `rows` rows, followed by those of `others` other ones."""
        return History(
            _join(self.seen, other.seen, rows, others),
            _join(self.counts, other.counts, rows, others),
            _join(self.previous, other.previous, rows, others),
        )


def _pairs(ids: Sequence[Sequence[int]], vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and token numbers of all tokens of all rows."""
    pairs = [(row, token_id) for row, token_ids in enumerate(ids) for token_id in token_ids if 0 <= token_id < vocabulary]
    table = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).to(device)
    return table[:, 0], table[:, 1]


def _take(memory: Tensor | None, index: Tensor, needed: bool) -> Tensor | None:
    return memory.index_select(0, index) if memory is not None and needed else None


def _join(first: Tensor | None, second: Tensor | None, rows: int, others: int) -> Tensor | None:
    if first is None and second is None:
        return None
    if first is None:
        assert second is not None
        first = second.new_zeros(rows, *second.shape[1:])
    if second is None:
        second = first.new_zeros(others, *first.shape[1:])
    return torch.cat((first, second))
