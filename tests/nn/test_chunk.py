"""How a sweep's host pages are put into slots: every page once, neighbours in one copy, no slot overfull."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.nn.chunk import Chunk, Reach, Run, chunks


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[list[Reach], int, int, int]:
    """Reaches over pages that nobody shares, the resident pages, the page size and the slot."""
    size = draw(st.sampled_from((1, 3, 4)))
    shape = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=6))
    widths = [-(-(start + tokens) // size) for start, tokens in shape]
    numbers = draw(st.permutations(range(sum(widths) + 3)))
    reaches, first = [], 0
    for (start, tokens), width in zip(shape, widths, strict=True):
        reaches.append(Reach(numbers[first : first + width], start, tokens))
        first += width
    return reaches, draw(st.integers(0, sum(widths) + 3)), size, max(widths) + draw(st.integers(0, 9))


def pages_of(runs: tuple[Run, ...]) -> dict[int, int]:
    """Page -> place in the slot."""
    return {run.page + i: run.place + i for run in runs for i in range(run.count)}


@given(sweeps())
def test_each_page_has_one_place_and_every_token_lies_in_its_page(what: tuple[list[Reach], int, int, int]) -> None:
    reaches, resident, size, slot = what
    found = chunks(reaches, resident=resident, page_size=size, slot_pages=slot)
    if not found:
        assert all(page < resident for reach in reaches for page in reach.pages)
        return
    assert [i for chunk in found for i in range(len(reaches))[chunk.sequences]] == list(range(len(reaches)))
    tokens = sum(reach.tokens for reach in reaches)
    assert [i for chunk in found for i in range(tokens)[chunk.tokens]] == list(range(tokens))
    for chunk in found:
        check(chunk, reaches[chunk.sequences], resident, size, slot)
    for chunk, after in pairwise(found):  # as few as can be, in order
        assert int(chunk.in_slot.sum()) + sum(page >= resident for page in reaches[after.sequences.start].pages) > slot


def check(chunk: Chunk, reaches: list[Reach], resident: int, size: int, slot: int) -> None:
    brought, written, place = pages_of(chunk.brought), pages_of(chunk.written), {}
    places, token = set(), 0
    for row, reach in enumerate(reaches):
        for column, page in enumerate(reach.pages):
            entry, away = int(chunk.table[row, column]), bool(chunk.in_slot[row, column])
            assert away == (page >= resident)
            if not away:
                assert entry == page
                continue
            assert 0 <= entry < slot
            place[page - resident] = entry
            assert (page - resident in brought) == (column * size < reach.start)
            assert (page - resident in written) == ((column + 1) * size > reach.start)
        for position in range(reach.start, reach.start + reach.tokens):
            entry, away = int(chunk.table[row, position // size]), bool(chunk.in_slot[row, position // size])
            assert chunk.places[token] == entry * size + position % size
            assert chunk.place_in_slot[token] == away
            places.add((away, int(chunk.places[token])))
            token += 1
    assert len(places) == token
    assert sorted(place.values()) == list(range(len(place)))
    for runs in (brought, written):
        assert all(place[page] == at for page, at in runs.items())
    for runs in (chunk.brought, chunk.written):
        for run, after in pairwise(runs):
            assert (run.page + run.count, run.place + run.count) != (after.page, after.place)


def test_what_a_block_of_groups_holds_is_two_copies() -> None:
    """Prompts one after another, then a page each: as the lowest free numbers go out."""
    reaches = [Reach([*range(4 * i, 4 * i + 4), 32 + i], 16, 1) for i in range(8)]
    (chunk,) = chunks(reaches, resident=0, page_size=4, slot_pages=40)
    assert chunk.brought == (Run(0, 0, 32),)
    assert chunk.written == (Run(32, 32, 8),)
    assert np.array_equal(chunk.table[3], [12, 13, 14, 15, 35])


def test_a_sequence_larger_than_a_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="5 pages on the host, a slot has room for 4"):
        chunks([Reach(range(5), 8, 1)], resident=0, page_size=2, slot_pages=4)
