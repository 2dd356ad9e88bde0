"""A sweep on its way to the device: what the host knows of it, packed into one copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inferometer.engine.facts import Facts, Integers
from inferometer.kernels.embed import Entries
from inferometer.nn.batch import CachedRows, RaggedBatch
from inferometer.nn.parts import Parts


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a sweep: tokens, sequences, how many of them are followed by a sampled token, entries of the block table to write."""

    tokens: int
    sequences: int
    sampled: int
    entries: int

    @property
    def nbytes(self) -> int:
        """Bytes of the packed sweep: eight-byte numbers first, so that all stay aligned."""
        return 8 * (4 * self.tokens + 2 * self.sampled + 3 * self.entries) + 4 * (3 * self.sequences + 1)


@dataclass(frozen=True, slots=True)
class Staged:
    """The packed sweep, on the device, taken apart (views).

    token_ids: int64 (tokens,), where negative the newest token of seat -1 - token_id. positions, rotary_lengths, places: int64 (tokens,),
    as in RaggedBatch and CachedRows. last: int64 (sampled,), the tokens after which one is sampled; sampled_seats: their seats.
    entry_seats, entry_columns, entry_pages: int64 (entries,), what the block table is to hold where.
    seats, contexts: int32 (sequences,); starts: int32 (sequences + 1,).
    """

    token_ids: Tensor
    positions: Tensor
    rotary_lengths: Tensor
    places: Tensor
    last: Tensor
    sampled_seats: Tensor
    entry_seats: Tensor
    entry_columns: Tensor
    entry_pages: Tensor
    seats: Tensor
    contexts: Tensor
    starts: Tensor

    @classmethod
    def of(cls, packed: Tensor, shape: Shape) -> Staged:
        """packed: uint8 (shape.nbytes,)."""
        t, s, e, r = shape.tokens, shape.sampled, shape.entries, shape.sequences
        wide = 8 * (4 * t + 2 * s + 3 * e)
        long = torch.split(packed[:wide].view(torch.int64), [t, t, t, t, s, s, e, e, e])
        short = torch.split(packed[wide:].view(torch.int32), [r, r, r + 1])
        return cls(*long, *short)

    def batch(
        self,
        tokens: Tensor,
        table: Tensor,
        query_lengths: tuple[int, ...],
        context_lengths: tuple[int, ...],
        *,
        apart: bool,
        entries: Entries | None = None,
        brought: Parts | None = None,
    ) -> RaggedBatch:
        """The sweep's batch. tokens: int64 (seats,), the newest token of every seat. table: int32 (seats, stride). apart, entries, brought:
        as in CachedRows."""
        return RaggedBatch(
            token_ids=self.token_ids,
            positions=self.positions,
            query_lengths=query_lengths,
            context_lengths=context_lengths,
            rotary_lengths=self.rotary_lengths,
            rows=CachedRows(table, self.seats, self.contexts, self.starts, self.places, apart, entries, brought),
            newest=tokens,
        )

    def entries(self, table: Tensor) -> Entries:
        """Those of the block table, int32 (seats, stride)."""
        return Entries(table, self.entry_seats, self.entry_columns, self.entry_pages)


def pack(facts: Facts, page_size: int) -> tuple[Tensor, Shape]:
    """The sweep as uint8 (bytes,) on the CPU, and its sizes. page_size: in tokens."""
    counts = facts.counts
    ends = counts.cumsum()
    shifts: Integers = facts.starts - ends + counts
    positions = np.arange(len(facts.token_ids)) + shifts.repeat(counts)
    rotary = np.maximum(facts.prompts.repeat(counts), positions + 1)
    places = _places(facts, positions, page_size)
    last, sampled_seats = (ends - 1)[facts.samples], facts.seats[facts.samples]
    entries = _entries(facts)
    shape = Shape(len(positions), len(counts), len(last), entries.shape[1])
    wide = np.concatenate((facts.token_ids, positions, rotary, places, last, sampled_seats, entries.ravel()))
    narrow = np.concatenate((facts.seats, facts.contexts, (0,), ends))
    return _joined(wide, narrow), shape


def table_entries(facts: Facts) -> Tensor:
    """int64 (3, entries) on the CPU: seats, columns and pages of what the block table must hold for the sweep and may not hold yet."""
    return torch.from_numpy(_entries(facts))


def pack_decode(facts: Facts, rows: int, page_size: int, idle_seat: int) -> Tensor:
    """As `pack`, for sequences that decode; padded to Shape(rows, rows, rows, rows).

    Rows of padding sit in `idle_seat`, which nobody reads, and write no key.
    """
    used, seats, positions, pages = len(facts), facts.seats, facts.starts, facts.pages
    wide = np.zeros((9, rows), dtype=np.int64)
    token_ids, position, rotary, places, last, sampled_seats, entry_seats, entry_columns, entry_pages = wide
    sampled_seats[used:] = idle_seat
    sampled_seats[:used] = seats
    entry_seats[:] = sampled_seats
    token_ids[:used] = facts.token_ids
    position[:used] = positions
    rotary[used:] = 1
    np.maximum(facts.prompts, facts.contexts, out=rotary[:used])
    places[used:] = -1
    places[:used] = pages * page_size + positions % page_size
    last[:] = np.arange(rows)
    entry_columns[:used] = facts.columns
    entry_pages[:used] = pages
    narrow = np.zeros(3 * rows + 1, dtype=np.int64)
    narrow[:rows] = sampled_seats
    narrow[rows : rows + used] = facts.contexts
    narrow[2 * rows :] = np.arange(rows + 1)
    return _joined(wide.ravel(), narrow)


def pack_mixed(decoding: Facts, prompts: Facts, rows: int, tokens: int, most_prompts: int, page_size: int, idle_seat: int) -> Tensor:
    """As `pack`, with the sequences that decode padded to `rows` and the others to `most_prompts` with `tokens` tokens in all.

    The result has Shape(rows + tokens, rows + most_prompts, rows + most_prompts, 0): entries of the block table are left to the caller.
    The shares that sample come first among the sampled, without gaps.
    """
    packed, shape = pack(prompts, page_size)
    theirs = Staged.of(packed, shape)
    wide = torch.zeros(4, rows + tokens, dtype=torch.int64)
    wide[2], wide[3] = 1, -1
    seats = torch.full((rows + most_prompts,), idle_seat, dtype=torch.int32)
    contexts = torch.zeros(rows + most_prompts, dtype=torch.int32)
    starts = torch.full((rows + most_prompts + 1,), rows + shape.tokens, dtype=torch.int32)
    last = torch.zeros(rows + most_prompts, dtype=torch.int64)
    sampled_seats = torch.full((rows + most_prompts,), idle_seat, dtype=torch.int64)
    used = len(decoding)
    if used:
        ours = Staged.of(pack_decode(decoding, used, page_size, idle_seat), Shape(used, used, used, used))
        wide[:, :used] = torch.stack((ours.token_ids, ours.positions, ours.rotary_lengths, ours.places))
        seats[:used], contexts[:used] = ours.seats, ours.contexts
        last[:used], sampled_seats[:used] = ours.last, ours.sampled_seats
    wide[:, rows : rows + shape.tokens] = torch.stack((theirs.token_ids, theirs.positions, theirs.rotary_lengths, theirs.places))
    seats[rows : rows + shape.sequences], contexts[rows : rows + shape.sequences] = theirs.seats, theirs.contexts
    torch.arange(rows, out=starts[:rows])
    starts[rows : rows + shape.sequences + 1] = theirs.starts + rows
    last[used : used + shape.sampled] = theirs.last + rows
    sampled_seats[used : used + shape.sampled] = theirs.sampled_seats
    long, short = torch.cat((wide.flatten(), last, sampled_seats)), torch.cat((seats, contexts, starts))
    return _joined(long.numpy(), short.numpy())


def _places(facts: Facts, positions: Integers, page_size: int) -> Integers:
    """Where the keys of the tokens at `positions` go in the cache."""
    entry = positions // page_size + _before(facts).repeat(facts.counts)
    places: Integers = facts.pages[entry] * page_size + positions % page_size
    return places


def _entries(facts: Facts) -> Integers:
    columns = np.arange(len(facts.pages)) - _before(facts).repeat(facts.widths)
    return np.stack((facts.seats.repeat(facts.widths), columns, facts.pages))


def _before(facts: Facts) -> Integers:
    """For each sequence, what leads from a column of its row of the block table to the place of that entry among all."""
    before: Integers = facts.widths.cumsum() - facts.widths - facts.columns
    return before


def _joined(wide: Integers, narrow: NDArray[np.integer[Any]]) -> Tensor:
    """Eight-byte numbers and four-byte ones behind them, as bytes. By one thread, as `pinned` copies."""
    return torch.from_numpy(np.concatenate((wide.view(np.uint8), narrow.astype(np.int32).view(np.uint8))))
