"""A sweep whose pages come and go: its parts, each of which attends while its own are on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from inferometer.nn.batch import CachedRows, RaggedBatch


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring sequences of a sweep while a layer attends to them. sequences, tokens: their slices of the sweep's.

    table: int32 (sequences, pages of the longest). places: int64 (tokens,). Both in the numbers that pages have in this layer.
    """

    sequences: slice
    tokens: slice
    table: Tensor
    places: Tensor

    def of(self, batch: RaggedBatch) -> RaggedBatch:
        """That part of the sweep's batch, as a batch."""
        rows, ours = batch.rows, self.sequences
        assert rows is not None
        starts = rows.starts[ours.start : ours.stop + 1]
        return RaggedBatch(
            token_ids=batch.token_ids[self.tokens],
            positions=batch.positions[self.tokens],
            query_lengths=batch.query_lengths[ours],
            context_lengths=batch.context_lengths[ours],
            rotary_lengths=batch.rotary_lengths[self.tokens],
            rows=CachedRows(
                table=self.table,
                seats=torch.arange(self.table.shape[0], dtype=torch.int32, device=self.table.device),
                contexts=rows.contexts[ours],
                starts=starts - starts[0],
                places=self.places,
                apart=rows.apart,
            ),
        )


class Parts(Protocol):
    """All parts of a sweep."""

    def come(self, layer: int) -> Iterator[Part]:
        """The layer's parts, each as its pages are in place. A part is done with when the next one is asked for.

        Layers come in order, each once.
        """
