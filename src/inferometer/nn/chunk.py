"""A sweep's sequences cut into chunks, each of which has its host pages in one slot while a layer attends to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]


class Run(NamedTuple):
    """Neighbouring pages: `count` from `page` on, counted from the first page on the host, which lie from `place` on in the slot."""

    page: int
    place: int
    count: int  # type: ignore[assignment]  # a field, not tuple.count


class Reach(NamedTuple):
    """What a sequence has in a sweep: its pages as far as the sweep writes, tokens that are there before, tokens that it runs."""

    pages: Sequence[int]
    start: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Neighbouring sequences of a sweep.

    sequences, tokens: their slices of the sweep's. table: int64 (sequences, pages of the longest): for a page on the device its number,
    else its place in the slot; in_slot: bool of the same shape. places, place_in_slot: the same for each token, in places of the cache.
    brought: pages that hold anything before the sweep. written: pages that the sweep writes to.
    """

    sequences: slice
    tokens: slice
    table: Integers
    in_slot: NDArray[np.bool_]
    places: Integers
    place_in_slot: NDArray[np.bool_]
    brought: tuple[Run, ...]
    written: tuple[Run, ...]


def chunks(reaches: Sequence[Reach], *, resident: int, page_size: int, slot_pages: int) -> tuple[Chunk, ...]:
    """As few chunks as fill slots in order; none where every page is on the device. No two sequences share a page.

    resident: pages with smaller numbers are on the device. Raises ValueError for a sequence that has more pages on the host than a slot.
    """
    owned = [np.asarray(reach.pages, dtype=np.int64) for reach in reaches]
    away = [int((pages >= resident).sum()) for pages in owned]
    if not any(away):
        return ()
    found: list[Chunk] = []
    first = token = filled = 0
    for number, count in enumerate(away):
        if count > slot_pages:
            raise ValueError(f"a sequence has {count} pages on the host, a slot has room for {slot_pages}")
        if filled + count > slot_pages:
            found.append(_chunk(reaches, owned, slice(first, number), token, resident, page_size))
            first, token, filled = number, found[-1].tokens.stop, 0
        filled += count
    found.append(_chunk(reaches, owned, slice(first, len(away)), token, resident, page_size))
    return tuple(found)


def _chunk(reaches: Sequence[Reach], owned: list[Integers], rows: slice, token: int, resident: int, page_size: int) -> Chunk:
    mine, pages = reaches[rows], np.concatenate(owned[rows])
    starts = np.array([reach.start for reach in mine], dtype=np.int64)
    counts = np.array([reach.tokens for reach in mine], dtype=np.int64)
    widths = np.array([len(each) for each in owned[rows]], dtype=np.int64)
    row = np.arange(len(mine)).repeat(widths)
    column = np.arange(len(pages)) - (widths.cumsum() - widths).repeat(widths)
    away = pages >= resident
    local = pages.copy()
    # In the order of their numbers, so that neighbours on the host are neighbours in the slot and one copy brings them.
    order = np.flatnonzero(away)[np.argsort(pages[away], kind="stable")]
    local[order] = np.arange(len(order))
    table = np.zeros((len(mine), int(widths.max())), dtype=np.int64)
    in_slot = np.zeros(table.shape, dtype=np.bool_)
    table[row, column], in_slot[row, column] = local, away
    of_token = np.arange(len(mine)).repeat(counts)
    position = np.arange(int(counts.sum())) - (counts.cumsum() - counts - starts).repeat(counts)
    entry = of_token, position // page_size
    numbers = pages[order] - resident
    return Chunk(
        sequences=rows,
        tokens=slice(token, token + int(counts.sum())),
        table=table,
        in_slot=in_slot,
        places=table[entry] * page_size + position % page_size,
        place_in_slot=in_slot[entry],
        brought=_runs(numbers, (column * page_size < starts[row])[order]),
        written=_runs(numbers, ((column + 1) * page_size > starts[row])[order]),
    )


def _runs(numbers: Integers, wanted: NDArray[np.bool_]) -> tuple[Run, ...]:
    """Those of the ascending page numbers that are wanted; the place of each is its index."""
    places = np.flatnonzero(wanted)
    if not len(places):
        return ()
    pages = numbers[places]
    begins = np.flatnonzero(np.concatenate(([True], (np.diff(pages) != 1) | (np.diff(places) != 1))))
    ends = np.append(begins[1:], len(places))
    return tuple(Run(int(pages[a]), int(places[a]), int(b - a)) for a, b in zip(begins, ends, strict=True))
