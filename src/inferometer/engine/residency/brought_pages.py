"""The pages of one sweep on their way: layer by layer into a slot, and back with what the layer has written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from inferometer.engine.residency.link import Link, Mark
from inferometer.nn.chunk import Chunk, Run
from inferometer.nn.parts import Part
from inferometer.nn.tiered_cache import TieredCache
from inferometer.nn.upload import upload

Pair = tuple[Tensor, Tensor]
"""Where to, and what."""


class PageTraffic:
    """The slots of a cache, in turn, and the two directions that pages take.

    bytes_in, bytes_out: what was queued so far.
    """

    def __init__(self, cache: TieredCache, inward: Link, outward: Link) -> None:
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
        # A slot that was never used may be memory that something else has just given back.
        after = [self._free.get(slot) or self._inward.computed()]
        if layer in self._home:
            after.append(self._home[layer])
        pairs = [pair for run in runs for pair in zip(self.cache.staged(slot, run.place, run.count), self._of(layer, run), strict=True)]
        self.bytes_in += _bytes(pairs)
        return slot, _copied(self._inward, pairs, after)

    def release(self, slot: int, layer: int, runs: Sequence[Run]) -> None:
        """All that reads the slot is launched; queues the copies of what was written there."""
        mark = self._outward.computed()
        if runs:
            pairs = [pair for run in runs for pair in zip(self._of(layer, run), self.cache.staged(slot, run.place, run.count), strict=True)]
            self.bytes_out += _bytes(pairs)
            mark = self._home[layer] = _copied(self._outward, pairs, (mark,))
        self._free[slot] = mark

    def close(self) -> None:
        """The host waits until nothing is under way: before memory goes."""
        for link in (self._inward, self._outward):
            link.copied().wait()

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
        """As `Parts.come`."""
        cache = self._traffic.cache
        for number, chunk in enumerate(self._chunks):
            slot, arrived = self._ahead.popleft()
            arrived.hold()
            yield Part(chunk.sequences, chunk.tokens, *self._numbers[number].counted_from(cache.place(slot, layer), cache.page_size))
            self._traffic.release(slot, layer, chunk.written)
            self._bring(1)

    def _bring(self, most: int) -> None:
        each = len(self._chunks)
        for _ in range(min(most, each * self._traffic.cache.layers - self._asked)):
            layer, number = divmod(self._asked, each)
            self._ahead.append(self._traffic.bring(layer, self._chunks[number].brought))
            self._asked += 1


def _copied(link: Link, pairs: Sequence[Pair], after: Sequence[Mark]) -> Mark:
    """Queues copies behind what they wait for; the mark behind them."""
    for mark in after:
        link.after(mark)
    for target, source in pairs:
        link.copy(target, source)
    return link.copied()


def _bytes(pairs: Sequence[Pair]) -> int:
    return sum(target.nbytes for target, _ in pairs)
