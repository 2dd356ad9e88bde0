"""How the product of few rows and a large weight is spread over a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.kernels.support import power_of_two

MOST_ROWS = 32
"""Beyond them the weight is no longer all that is moved, and matrix libraries know better."""
FEWEST_STEPS = 2
"""Blocks of inputs that a program must have, so that cutting them pays."""
MOST_PARTS = 32


@dataclass(frozen=True, slots=True)
class Tiling:
    """outputs: of a program. block: inputs an iteration. warps: a program. stages: iterations whose loads overlap (one row: always
    two, in registers). programs: for each processor; the inputs are cut into as many parts as it takes, 0 for uncut. early:
    launched before the kernel ahead of it in the stream has ended, from Hopper on: weights are fetched while that one ends."""

    outputs: int
    block: int
    warps: int
    stages: int
    programs: int = 0
    early: bool = False

    def parts(self, outputs: int, inputs: int, processors: int) -> int:
        """Into how many parts the inputs are cut: a power of two, since each number is compiled for itself."""
        tiles = -(-outputs // self.outputs)
        wanted = self.programs * processors // tiles
        return max(1, min(_floor(wanted), _floor(-(-inputs // self.block) // FEWEST_STEPS), MOST_PARTS))


def _floor(number: int) -> int:
    """The greatest power of two that is not above `number`; 1 below 1."""
    return 1 << (max(1, number).bit_length() - 1)


_ANY = 1 << 30
LAUNCHES: tuple[tuple[int, int, int, tuple[Tiling, ...]], ...] = (
    # One row: a multiplication and a sum for each weight. Small programs where there are few outputs, so that all processors have some.
    (1, 3072, 1024, (Tiling(4, 512, 4, 1), Tiling(1, 1024, 4, 1))),
    (1, 3072, _ANY, (Tiling(2, 2048, 4, 1, early=True), Tiling(1, 2048, 4, 1), Tiling(4, 1024, 4, 1))),
    (1, _ANY, _ANY, (Tiling(4, 1024, 4, 1, early=True), Tiling(4, 1024, 4, 1), Tiling(2, 2048, 4, 1))),
    # 64 outputs are the least for Hopper's matrix instructions that read the weight where it has been copied to, in shared memory.
    (16, _ANY, _ANY, (Tiling(64, 128, 4, 4, 2, early=True), Tiling(64, 128, 4, 4, 4), Tiling(32, 256, 4, 4, 4), Tiling(64, 256, 4, 3, 1))),
    (MOST_ROWS, _ANY, _ANY, (Tiling(64, 128, 4, 4, 2, early=True), Tiling(64, 128, 4, 4, 4), Tiling(64, 256, 4, 3, 1))),
)
"""(rows, outputs, inputs, launches): the first whose limits are not exceeded. Its first launch is what serves unless measuring says
otherwise, and the others are measured beside it."""


def candidates(rows: int, outputs: int, inputs: int) -> tuple[Tiling, ...]:
    """What the table says for so many rows; for more than it has, its last entry."""
    for most_rows, most_outputs, most_inputs, launches in LAUNCHES:
        if rows <= most_rows and outputs <= most_outputs and inputs <= most_inputs:
            return launches
    return LAUNCHES[-1][-1]


def tiling(rows: int, outputs: int, inputs: int) -> Tiling:
    """The best of them, before anything is measured."""
    return candidates(rows, outputs, inputs)[0]


def members(rows: int) -> int:
    """Rows of the matrix product that `rows` are padded to."""
    return power_of_two(max(16, rows))
