"""Pieces of large sums: every row once, and no rank overwrites what another has yet to read, whoever is slow."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.engine.parallel.peer_copies import ROOMS
from inferometer.engine.parallel.pieces import LAG, LEAST_BYTES, MOST, SLOTS, TILE, moves, parts, pieces, rounds


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


@given(st.integers(0, 500), st.integers(0, 700), st.integers(1, 8))
def test_every_row_is_added_up_by_one_rank(start: int, rows: int, ranks: int) -> None:
    shares = parts(range(start, start + rows), ranks)
    assert len(shares) == ranks
    assert [row for share in shares for row in share] == list(range(start, start + rows))
    assert max(len(share) for share in shares) <= -(-rows // ranks)


@given(st.integers(0, 40))
def test_rounds_are_all_pieces_and_have_a_slot_for_each(count: int) -> None:
    found = tuple(range(i, i + 1) for i in range(count))
    cut = list(rounds(found))
    assert tuple(piece for some in cut for piece in some) == found
    assert all(1 <= len(some) <= SLOTS for some in cut)


@settings(deadline=None)
@given(st.integers(2, 4), st.lists(st.integers(1, SLOTS), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_nothing_is_written_before_its_reader_is_done(size: int, sums: list[int], draw: random.Random) -> None:
    """Ranks take their steps in any order. A product reads what the sum before returned, piece by piece."""
    ranks = [_Rank(rank, size, sums) for rank in range(size)]
    while any(not rank.ended for rank in ranks):
        able = [step for rank in ranks for step in rank.possible(ranks)]
        assert able, "nobody can go on"
        draw.choice(able)()
    for rank in ranks:
        assert rank.read == [(number, owner, piece) for number, count in enumerate(sums) for piece in range(count) for owner in range(size)]


class _Rank:
    """A main stream and one for each other rank, as lists of what they do; a step is possible when what it waits for is done.

    (what, sum, piece): `make` reads the result of the sum before, `add` what others have sent, `end` waits for the result; `parts` and
    `sums` send. flags: of each kind, slot and rank the last sum that it was raised for.
    """

    def __init__(self, rank: int, size: int, sums: list[int]) -> None:
        self.rank, self.size, self.counts = rank, size, sums
        self.inbox: dict[tuple[int, int], tuple[int, int]] = {}
        self.results: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self.flags: dict[tuple[str, int, int], int] = {}
        self.main: list[tuple[str, int, int]] = []
        self.sides: dict[int, list[tuple[str, int, int]]] = {peer: [] for peer in range(size) if peer != rank}
        for number, count in enumerate(sums):
            for move in moves(count):
                self.main.append((move.what, number, move.piece))
                for side in self.sides.values():
                    side.append(("parts" if move.what == "make" else "sums", number, move.piece))
            self.main.append(("end", number, 0))
        self.main.append(("last", len(sums), 0))
        self.done: set[tuple[str, int, int]] = set()
        self.read: list[tuple[int, int, int]] = []

    @property
    def ended(self) -> bool:
        return not self.main and not any(self.sides.values())

    def possible(self, ranks: list[_Rank]) -> list[Callable[[], None]]:
        steps: list[Callable[[], None]] = []
        if self.main and self.ready(*self.main[0]):
            steps.append(self.go_on)
        for peer, side in self.sides.items():
            if side:
                what, number, piece = side[0]
                if ("make" if what == "parts" else "add", number, piece) in self.done:
                    steps.append(lambda peer=peer: self.send(ranks[peer]))
        return steps

    def ready(self, what: str, number: int, piece: int) -> bool:
        if what == "add":
            return all(self.flags.get(("parts", piece, peer), -1) >= number for peer in self.sides)
        if what == "end":
            sent = all(("sums", number, piece) not in side for side in self.sides.values() for piece in range(self.counts[number]))
            slots = range(self.counts[number])
            return sent and all(self.flags.get(("sums", slot, peer), -1) >= number for slot in slots for peer in self.sides)
        return True

    def go_on(self) -> None:
        what, number, piece = step = self.main.pop(0)
        if what == "add":
            assert all(self.inbox[piece, peer] == (number, piece) for peer in self.sides)
            for peer in self.sides:
                del self.inbox[piece, peer]
            self.put(number, self.rank, piece)
        elif what in ("make", "last") and number and not piece:
            for slot in range(self.counts[number - 1]):
                for owner in range(self.size):
                    assert self.results[(number - 1) % ROOMS, owner, slot] == (number - 1, owner, slot)
                    self.read.append((number - 1, owner, slot))
        elif what == "make" and number:
            for slot in range(self.counts[number - 1]):
                assert all(self.results[(number - 1) % ROOMS, owner, slot] == (number - 1, owner, slot) for owner in range(self.size))
        self.done.add(step)

    def send(self, other: _Rank) -> None:
        what, number, piece = self.sides[other.rank].pop(0)
        if what == "parts":
            assert (piece, self.rank) not in other.inbox, "overwritten before it was added"
            other.inbox[piece, self.rank] = number, piece
        else:
            other.put(number, self.rank, piece)
        other.flags[what, piece, self.rank] = number

    def put(self, number: int, owner: int, piece: int) -> None:
        before = self.results.get((number % ROOMS, owner, piece))
        # Whatever reads the result of the sum but one before has been launched before this sum began.
        assert before is None or ("make", number, 0) in self.done, "overwritten before it was read"
        self.results[number % ROOMS, owner, piece] = number, owner, piece
