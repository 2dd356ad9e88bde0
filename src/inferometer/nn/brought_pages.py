"""The pages of one sweep on their way: layer by layer into a slot, and back with what the layer has written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from inferometer.nn.batch import CachedRows, RaggedBatch
from inferometer.nn.chunk import Chunk, Run
from inferometer.nn.copying import Copier, Mark, Pair
from inferometer.nn.tiered_cache import TieredCache
from inferometer.nn.upload import upload


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


class PageTraffic:
    """The slots of a cache, in turn, and the two directions that pages take.

    bytes_in, bytes_out: what was queued so far.
    """

    def __init__(self, cache: TieredCache, inward: Copier, outward: Copier) -> None:
        self.cache = cache
        self.bytes_in = self.bytes_out = 0
        self._inward, self._outward = inward, outward
        self._turn = 0
        self._free: dict[int, Mark] = {}  # by slot: when its last user has done with it
        self._home: dict[int, Mark] = {}  # by layer: when what it wrote last has arrived on the host

    def begin(self, chunks: Sequence[Chunk]) -> BroughtPages:
        """A sweep of these chunks. The first of its pages set out."""
        return BroughtPages(self, chunks)

    def bring(self, layer: int, runs: Sequence[Run]) -> tuple[int, Mark]:
        """Queues the next copy in: the slot it goes to, and the mark behind it."""
        slot = self._turn % self.cache.slots
        self._turn += 1
        after = [mark for mark in (self._free.get(slot), self._home.get(layer)) if mark is not None]
        pairs = [pair for run in runs for pair in zip(self.cache.staged(slot, run.place, run.count), self._of(layer, run), strict=True)]
        self.bytes_in += _bytes(pairs)
        return slot, self._inward.copy(pairs, after)

    def wait(self, mark: Mark) -> None:
        """The computation goes on behind the mark."""
        self._inward.wait(mark)

    def release(self, slot: int, layer: int, runs: Sequence[Run]) -> None:
        """All that reads the slot is launched; queues the copies of what was written there."""
        mark = self._outward.mark()
        if runs:
            pairs = [pair for run in runs for pair in zip(self._of(layer, run), self.cache.staged(slot, run.place, run.count), strict=True)]
            self.bytes_out += _bytes(pairs)
            mark = self._home[layer] = self._outward.copy(pairs, (mark,))
        self._free[slot] = mark

    def close(self) -> None:
        """The host waits until nothing is under way: before memory goes."""
        self._inward.close()
        self._outward.close()

    def _of(self, layer: int, run: Run) -> tuple[Tensor, Tensor]:
        return self.cache.home(layer, run.page, run.count)


class _Numbers(NamedTuple):
    """A chunk's table and places on the device, and which of them (1, else 0) are in the slot."""

    table: Tensor
    table_in_slot: Tensor
    places: Tensor
    place_in_slot: Tensor

    def counted_from(self, first: int, page_size: int) -> tuple[Tensor, Tensor]:
        """Table and places where the slot's first page has the number `first`."""
        table = torch.add(self.table, self.table_in_slot, alpha=first)
        return table, torch.add(self.places, self.place_in_slot, alpha=first * page_size)


class BroughtPages:
    """One sweep: its chunks in every layer, in order, as many of them on their way as there are slots.

    The link is busy throughout: a slot is free as soon as the attention of its chunk has run, whatever else the layer has yet to do, and
    the chunk that comes next there is known.
    """

    def __init__(self, traffic: PageTraffic, chunks: Sequence[Chunk]) -> None:
        self._traffic = traffic
        self._chunks = chunks
        cache = traffic.cache
        device = cache.keys.device
        self._ahead: deque[tuple[int, Mark]] = deque()
        self._asked = 0
        self._bring(cache.slots)
        self._numbers = [
            _Numbers(
                upload(torch.from_numpy(chunk.table), torch.int32, device),
                upload(torch.from_numpy(chunk.in_slot), torch.int32, device),
                upload(torch.from_numpy(chunk.places), torch.int64, device),
                upload(torch.from_numpy(chunk.place_in_slot), torch.int64, device),
            )
            for chunk in chunks
        ]

    def come(self, layer: int) -> Iterator[Part]:
        """The layer's parts, each as its pages are in place. A part is done with when the next one is asked for.

        Layers come in order, each once.
        """
        cache = self._traffic.cache
        for number, chunk in enumerate(self._chunks):
            slot, arrived = self._ahead.popleft()
            self._traffic.wait(arrived)
            yield Part(chunk.sequences, chunk.tokens, *self._numbers[number].counted_from(cache.place(slot, layer), cache.page_size))
            self._traffic.release(slot, layer, chunk.written)
            self._bring(1)

    def _bring(self, most: int) -> None:
        each = len(self._chunks)
        for _ in range(min(most, each * self._traffic.cache.layers - self._asked)):
            layer, number = divmod(self._asked, each)
            self._ahead.append(self._traffic.bring(layer, self._chunks[number].brought))
            self._asked += 1


def _bytes(pairs: Sequence[Pair]) -> int:
    return sum(target.nbytes for target, _ in pairs)
