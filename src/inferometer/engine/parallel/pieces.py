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
LAG: Final = 3
"""How many pieces are computed ahead of the one that is added up."""
SLOTS: Final = LAG + 2
"""Of memory that others write to. They write piece i + SLOTS where piece i was, once all have sent piece i + SLOTS - 1, each of which
has added up piece i by then."""


@dataclass(frozen=True, slots=True)
class Move:
    """What a rank does with a piece, in the order of its stream: `make` computes it and sends it off, `add` waits for the others' and
    adds them up."""

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


def moves(count: int) -> Iterator[Move]:
    """Every piece is made and later added, at most LAG behind."""
    for piece in range(count):
        yield Move("make", piece)
        if piece >= LAG:
            yield Move("add", piece - LAG)
    for piece in range(max(0, count - LAG), count):
        yield Move("add", piece)
