"""How a large sum over ranks is cut, so that one piece is under way while the next is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

MOST: Final = 4
"""Pieces of a sum that fits so many slots: what is left to wait for behind the last is small by then, and products stay large."""
LEAST_BYTES: Final = 8 << 20
"""Of a piece where there are several: below, the host takes longer to launch one than the link to carry it."""
TILE: Final = 128
"""Rows that products are computed in."""
LAG: Final = 1
"""How many pieces are computed ahead of the one that is added up: its parts are on their way while the next is computed."""
SLOTS: Final = MOST + 1
"""Pieces of a round: what is not a whole number of tiles may take one more."""


@dataclass(frozen=True, slots=True)
class Move:
    """What a rank does with a piece, in the order of its stream: `make` computes it and sends others their parts of it, `add` waits for
    the others' parts of what is its own, adds them up and sends the sum to all."""

    what: Literal["make", "add"]
    piece: int


def pieces(rows: int, row_bytes: int, slot_bytes: int) -> tuple[range, ...]:
    """Runs of rows, in their order, none larger than a slot. Raises ValueError for rows that are larger than one."""
    held = slot_bytes // row_bytes
    if held < 1:
        raise ValueError(f"a row of {row_bytes} bytes is larger than {slot_bytes}")
    wanted = max(1, min(MOST, rows * row_bytes // LEAST_BYTES))
    each = max(1, -(-rows // wanted))
    if wanted > 1:
        each = -(-each // TILE) * TILE
    if each > held:
        each = held // TILE * TILE or held
    return tuple(range(start, min(start + each, rows)) for start in range(0, rows, each))


def rounds(found: tuple[range, ...]) -> Iterator[tuple[range, ...]]:
    """As many pieces at a time as there are slots."""
    for first in range(0, len(found), SLOTS):
        yield found[first : first + SLOTS]


def parts(piece: range, ranks: int) -> tuple[range, ...]:
    """The rows that each rank adds up."""
    each = -(-len(piece) // ranks)
    bounds = [min(piece.start + each * rank, piece.stop) for rank in range(ranks + 1)]
    return tuple(range(bounds[rank], bounds[rank + 1]) for rank in range(ranks))


def moves(count: int) -> Iterator[Move]:
    """Every piece is made and later added, at most LAG behind."""
    for piece in range(count):
        yield Move("make", piece)
        if piece >= LAG:
            yield Move("add", piece - LAG)
    for piece in range(max(0, count - LAG), count):
        yield Move("add", piece)
