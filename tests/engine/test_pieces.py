"""Pieces of large sums: every row once, and no rank overwrites what another has yet to read, whoever is slow."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.engine.parallel.pieces import LAG, LEAST_BYTES, MOST, SLOTS, TILE, moves, pieces


@settings(deadline=None)
@given(st.integers(0, 3000), st.integers(1, 1 << 17), st.integers(1 << 17, 1 << 25))
def test_pieces_are_all_rows_in_their_order_and_fit(rows: int, row_bytes: int, slot_bytes: int) -> None:
    found = pieces(rows, row_bytes, slot_bytes)
    assert [row for piece in found for row in (piece.start, piece.stop - 1)] == sorted(
        row for piece in found for row in (piece.start, piece.stop - 1)
    )
    assert sum(len(piece) for piece in found) == rows
    assert all(len(piece) * row_bytes <= slot_bytes for piece in found)


def test_a_large_sum_is_cut_where_tiles_end() -> None:
    found = pieces(8192, 8192, 32 << 20)
    assert len(found) == MOST
    assert all(len(piece) % TILE == 0 for piece in found)
    assert len(pieces(LEAST_BYTES // 8192, 8192, 32 << 20)) == 1
    assert max(len(piece) for piece in pieces(8192, 14336, 32 << 20)) * 14336 <= 32 << 20


def test_a_row_that_no_slot_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than 100"):
        pieces(1, 101, 100)


@pytest.mark.parametrize("count", [0, 1, LAG, SLOTS, 13])
def test_every_piece_is_made_and_then_added(count: int) -> None:
    order = list(moves(count))
    for what in ("make", "add"):
        assert [move.piece for move in order if move.what == what] == list(range(count))
    for piece in range(count):
        ahead = [move.what for move in order if move.piece == piece]
        assert ahead == ["make", "add"]


@settings(deadline=None)
@given(st.integers(2, 4), st.lists(st.integers(0, 12), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_no_slot_is_written_before_its_reader_is_done(size: int, sums: list[int], draw: random.Random) -> None:
    """Ranks take their steps in any order. A rank's main stream makes and adds; its side stream meets, sends and meets, sum after sum."""
    ranks = [_Rank(rank, size, sums) for rank in range(size)]
    while any(not rank.ended for rank in ranks):
        able = [step for rank in ranks for step in rank.possible(ranks)]
        assert able, "nobody can go on"
        draw.choice(able)()
    for rank in ranks:
        assert rank.added == [(number, piece) for number, count in enumerate(sums) for piece in range(count)]


class _Rank:
    """Two streams as lists of what they do; a step is possible when what it waits for is done."""

    def __init__(self, rank: int, size: int, sums: list[int]) -> None:
        self.rank, self.size = rank, size
        self.slots: dict[tuple[int, int], tuple[int, int]] = {}
        self.main: list[tuple[str, int, int]] = []
        self.side: list[tuple[str, int, int]] = []
        for number, count in enumerate(sums):
            self.main.append(("begin", number, 0))
            self.main += [(move.what, number, move.piece) for move in moves(count)]
            self.side.append(("start", number, 0))
            for piece in range(count):
                self.side += [("send", number, piece), ("meet", number, piece)]
        self.done: set[tuple[str, int, int]] = set()
        self.arrived: set[tuple[str, int, int]] = set()
        self.added: list[tuple[int, int]] = []

    @property
    def ended(self) -> bool:
        return not self.main and not self.side

    def possible(self, ranks: list[_Rank]) -> list[object]:
        steps: list[object] = []
        if self.main:
            what, number, piece = self.main[0]
            if what != "add" or ("meet", number, piece) in self.done:
                steps.append(lambda: self.go_on(self.main))
        if self.side:
            what, number, piece = step = self.side[0]
            behind = {"start": ("begin", number, 0), "send": ("make", number, piece)}.get(what)
            if behind is None or behind in self.done:
                if what == "send":
                    steps.append(lambda: self.send(ranks, number, piece))
                elif step not in self.arrived:
                    steps.append(lambda: self.arrived.add(step))
                elif all(step in other.arrived for other in ranks):
                    steps.append(lambda: self.go_on(self.side))
        return steps

    def go_on(self, stream: list[tuple[str, int, int]]) -> None:
        what, number, piece = step = stream.pop(0)
        self.done.add(step)
        if what == "add":
            for source in range(self.size):
                assert source == self.rank or self.slots[piece % SLOTS, source] == (number, piece)
            self.added.append((number, piece))

    def send(self, ranks: list[_Rank], number: int, piece: int) -> None:
        for other in ranks:
            if other is not self:
                before = other.slots.get((piece % SLOTS, self.rank))
                assert before is None or before in other.added, "overwritten before it was read"
                other.slots[piece % SLOTS, self.rank] = number, piece
        self.go_on(self.side)
