"""A sweep on its way to the device: what the host knows of it, packed into one copy."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from inferometer.nn.batch import CachedRows, RaggedBatch
from inferometer.schedule.sweep import Share


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
        self, tokens: Tensor, table: Tensor, query_lengths: tuple[int, ...], context_lengths: tuple[int, ...], *, apart: bool
    ) -> RaggedBatch:
        """The sweep's batch. tokens: int64 (seats,), the newest token of every seat. table: int32 (seats, stride). apart: CachedRows."""
        newest = tokens[(-1 - self.token_ids).clamp_(min=0)]
        return RaggedBatch(
            token_ids=torch.where(self.token_ids < 0, newest, self.token_ids),
            positions=self.positions,
            query_lengths=query_lengths,
            context_lengths=context_lengths,
            rotary_lengths=self.rotary_lengths,
            rows=CachedRows(table, self.seats, self.contexts, self.starts, self.places, apart),
        )

    def write_entries(self, table: Tensor) -> None:
        """Puts the entries into the block table, int32 (seats, stride)."""
        table[self.entry_seats, self.entry_columns] = self.entry_pages.to(torch.int32)


def pack(shares: Many[Share], page_size: int) -> tuple[Tensor, Shape]:
    """The sweep as uint8 on the CPU, and its sizes."""
    token_ids, positions, rotary, places = array("q"), array("q"), array("q"), array("q")
    last, sampled_seats = array("q"), array("q")
    seats, contexts, starts = array("i"), array("i"), array("i", [0])
    for share in shares:
        sequence, start, count = share.sequence, share.start, share.count
        seat, stop = sequence.seat, start + count
        assert seat is not None
        known = sequence.tokens
        if stop <= len(known):
            token_ids.extend(known[start:stop])
        else:  # a token that the host has not read yet: it is on the device
            token_ids.append(-1 - seat)
        positions.extend(range(start, stop))
        prompt = sequence.prompt
        if stop <= prompt:
            rotary.extend((prompt,) * count)
        else:
            rotary.extend(max(prompt, position + 1) for position in range(start, stop))
        pages = sequence.pages
        first_page, end_page = start // page_size, -(-stop // page_size)
        for column in range(first_page, end_page):
            place = pages[column] * page_size
            low = max(start - column * page_size, 0)
            high = min(stop - column * page_size, page_size)
            places.extend(range(place + low, place + high))
        seats.append(seat)
        contexts.append(stop)
        starts.append(starts[-1] + count)
        if share.samples:
            last.append(starts[-1] - 1)
            sampled_seats.append(seat)
    entries = table_entries(shares, page_size)
    shape = Shape(len(token_ids), len(seats), len(last), entries.shape[1])
    wide = (token_ids, positions, rotary, places, last, sampled_seats)
    long = torch.frombuffer(bytearray().join(part.tobytes() for part in wide), dtype=torch.uint8)
    short = torch.frombuffer(bytearray().join(part.tobytes() for part in (seats, contexts, starts)), dtype=torch.uint8)
    return torch.cat((long, entries.flatten().view(torch.uint8), short)), shape


def table_entries(shares: Many[Share], page_size: int) -> Tensor:
    """int64 (3, entries) on the CPU: seats, columns and pages of what the block table must hold for the sweep and may not hold yet.

    Those are the pages that the shares write to, and all of a sequence that has just taken its seat.
    """
    seats: list[int] = []
    columns: list[int] = []
    pages: list[int] = []
    for share in shares:
        sequence = share.sequence
        assert sequence.seat is not None
        first, end = 0 if share.enters else share.start // page_size, -(-(share.start + share.count) // page_size)
        seats.extend((sequence.seat,) * (end - first))
        columns.extend(range(first, end))
        pages.extend(sequence.pages[first:end])
    return torch.tensor((seats, columns, pages), dtype=torch.int64)


def pack_decode(shares: Many[Share], rows: int, page_size: int, idle_seat: int) -> Tensor:
    """As `pack`, for sequences that decode, all of whose newest tokens are on the device; padded to Shape(rows, rows, rows, rows).

    Rows of padding sit in `idle_seat`, which nobody reads, and write no key.
    """
    used = len(shares)
    facts = [(s.sequence.seat, s.start, s.sequence.pages[s.start // page_size], s.sequence.prompt) for s in shares]
    seats, positions, pages, prompts = torch.tensor(facts, dtype=torch.int64).unbind(1)
    wide = torch.zeros(9, rows, dtype=torch.int64)
    token_ids, position, rotary, places, last, sampled_seats, entry_seats, entry_columns, entry_pages = wide.unbind(0)
    sampled_seats.fill_(idle_seat)[:used] = seats
    entry_seats.copy_(sampled_seats)
    token_ids[:used] = -1 - seats
    position[:used] = positions
    rotary.fill_(1)[:used] = torch.maximum(prompts, positions + 1)
    places.fill_(-1)[:used] = pages * page_size + positions % page_size
    torch.arange(rows, out=last)
    entry_columns[:used] = positions // page_size
    entry_pages[:used] = pages
    narrow = torch.zeros(3 * rows + 1, dtype=torch.int32)
    narrow[:rows] = sampled_seats
    narrow[rows : rows + used] = positions + 1
    torch.arange(rows + 1, out=narrow[2 * rows :])
    return torch.cat((wide.flatten().view(torch.uint8), narrow.view(torch.uint8)))


def pack_mixed(
    decoding: Many[Share], prompts: Many[Share], rows: int, tokens: int, most_prompts: int, page_size: int, idle_seat: int
) -> Tensor:
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
    long = torch.cat((wide.flatten(), last, sampled_seats))
    return torch.cat((long.view(torch.uint8), torch.cat((seats, contexts, starts)).view(torch.uint8)))
