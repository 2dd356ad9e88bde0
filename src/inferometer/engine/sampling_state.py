"""The sampling batch as it follows the sweeps: who samples now, in which order, with what remembered."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch

from inferometer.engine.sampler import SamplingBatch, SamplingRow
from inferometer.engine.watermark import DEFAULT_WATERMARK, Watermark
from inferometer.schedule.sequence import Sequence


class SamplingState:
    """Keeps one SamplingBatch in step with the sequences that sample in each sweep."""

    def __init__(self, vocabulary: int, device: torch.device, watermark: Watermark = DEFAULT_WATERMARK) -> None:
        self._vocabulary = vocabulary
        self._device = device
        self._watermark = watermark
        self._sequences: tuple[Sequence, ...] = ()
        self._places: dict[int, int] = {}  # by identity, which lasts as long as the sequences are held
        self._batch: SamplingBatch | None = None

    def place(self, sequence: Sequence) -> int:
        """The row that a sequence which goes on decoding has in the batch; one beyond all rows if it has none."""
        return self._places.get(id(sequence), len(self._places))

    def clear(self) -> None:
        """Forgets all rows."""
        self._sequences, self._places, self._batch = (), {}, None

    def align(self, decoding: tuple[Sequence, ...], entering: Many[Sequence]) -> SamplingBatch:
        """The batch of the sequences that sample in the coming sweep.

        decoding: those that continue, in the order of `place`. entering: those whose prompt (or recomputation) ends in the sweep, with
        all their tokens known to the host. A decoding sequence without a row is built from its tokens as well: it has skipped a sweep,
        so the host has read them all.
        """
        if decoding is self._sequences and not entering and self._batch is not None:
            return self._batch  # as the sweep before
        kept = [self._places[id(sequence)] for sequence in decoding if id(sequence) in self._places]
        new = [*decoding[len(kept) :], *entering]
        if not new and kept == list(range(len(self._places))):
            assert self._batch is not None
            self._sequences = decoding
            return self._batch
        rows = [_row(sequence) for sequence in new]
        joined = SamplingBatch.build(rows, self._vocabulary, self._device, self._watermark) if rows else None
        if kept:
            assert self._batch is not None
            batch = self._batch.select(kept) if len(kept) < len(self._places) else self._batch
            if joined is not None:
                batch.extend(joined)
        else:
            assert joined is not None
            batch = joined
        self._batch = batch
        self._sequences = (*decoding, *entering) if entering else decoding
        self._places = {id(sequence): place for place, sequence in enumerate(self._sequences)}
        return batch


def _row(sequence: Sequence) -> SamplingRow:
    request = sequence.request
    return SamplingRow(
        request.params,
        request.seed,
        request.prompt_token_ids,
        tuple(sequence.tokens[sequence.prompt :]),
        request.eos_token_ids,
        request.model_logprobs,
    )
