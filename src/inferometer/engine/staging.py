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

PADDING = np.array(((1,), (-1,)))
"""rotary_lengths and places of a token that fills up a batch: it writes no key."""


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
    ends = facts.counts.cumsum()
    tokens = _tokens(facts, ends, page_size)
    last, sampled_seats = (ends - 1)[facts.samples], facts.seats[facts.samples]
    entries = _entries(facts)
    shape = Shape(len(facts.token_ids), len(ends), len(last), entries.shape[1])
    wide = np.concatenate((*tokens, last, sampled_seats, entries.ravel()))
    narrow = np.concatenate((facts.seats, facts.contexts, (0,), ends))
    return _joined(wide, narrow), shape


def table_entries(facts: Facts) -> Tensor:
    """int64 (3, entries) on the CPU: seats, columns and pages of what the block table must hold for the sweep and may not hold yet."""
    return torch.from_numpy(_entries(facts))


def pack_decode(facts: Facts, rows: int, page_size: int, idle_seat: int) -> Tensor:
    """As `pack`, for sequences that decode; padded to Shape(rows, rows, rows, rows).

    Rows of padding sit in `idle_seat`, which nobody reads, and write no key.
    """
    used = len(facts)
    wide = np.zeros((9, rows), dtype=np.int64)
    last, sampled_seats, entry_seats, entry_columns, entry_pages = wide[4:]
    wide[2:4, used:] = PADDING
    wide[:4, :used] = _decoding(facts, page_size)
    sampled_seats[used:] = idle_seat
    sampled_seats[:used] = facts.seats
    entry_seats[:] = sampled_seats
    last[:] = np.arange(rows)
    entry_columns[:used] = facts.columns
    entry_pages[:used] = facts.pages
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
    used, count, sequences = len(decoding), len(prompts), rows + most_prompts
    ends = prompts.counts.cumsum()
    stop = rows + len(prompts.token_ids)
    wide = np.zeros((4, rows + tokens), dtype=np.int64)
    wide[2:, used:rows] = wide[2:, stop:] = PADDING
    wide[:, :used] = _decoding(decoding, page_size)
    wide[:, rows:stop] = _tokens(prompts, ends, page_size)
    last, seats = np.zeros(sequences, dtype=np.int64), np.full(sequences, idle_seat)
    sampled_seats, contexts = seats.copy(), np.zeros(sequences, dtype=np.int64)
    starts = np.full(sequences + 1, stop)
    sampled = used + int(prompts.samples.sum())
    last[:used] = np.arange(used)
    last[used:sampled] = (ends - 1)[prompts.samples] + rows
    sampled_seats[:used] = seats[:used] = decoding.seats
    sampled_seats[used:sampled] = prompts.seats[prompts.samples]
    seats[rows : rows + count], contexts[rows : rows + count] = prompts.seats, prompts.contexts
    contexts[:used] = decoding.contexts
    starts[: rows + 1] = np.arange(rows + 1)
    starts[rows + 1 : rows + count + 1] = ends + rows
    return _joined(np.concatenate((wide.ravel(), last, sampled_seats)), np.concatenate((seats, contexts, starts)))


def _tokens(facts: Facts, ends: Integers, page_size: int) -> tuple[Integers, ...]:
    """token_ids, positions, rotary_lengths and places of the shares' tokens, each int64 (tokens,). ends: of each share among them."""
    counts = facts.counts
    shifts: Integers = facts.starts - ends + counts
    positions: Integers = np.arange(len(facts.token_ids)) + shifts.repeat(counts)
    rotary = np.maximum(facts.prompts.repeat(counts), positions + 1)
    return facts.token_ids, positions, rotary, _places(facts, positions, page_size)


def _decoding(facts: Facts, page_size: int) -> tuple[Integers, ...]:
    """The same of sequences that decode: a token each, on the one page that is theirs."""
    positions = facts.starts
    return facts.token_ids, positions, np.maximum(facts.prompts, facts.contexts), facts.pages * page_size + positions % page_size


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
