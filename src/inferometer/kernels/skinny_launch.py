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
    """outputs: of a tile. block: inputs an iteration. warps: a program. stages: iterations whose loads overlap. programs: for each
    processor; the inputs are cut into as many parts as it takes, 0 for uncut. early: launched before the kernel ahead of it in the
    stream has ended, from Hopper on: weights are fetched while that one ends. whole: a program holds up to four whole rows in registers,
    which it can norm first; block is all inputs then, and the outputs are dealt out to the programs; stages are always two, or for a weight
    in few bits one and the tiles that are fetched ahead. in_bytes: such a weight is multiplied as it lies, by rows in bytes.
    readied: a launch of its own brings the rows into the form in which such a product takes them: bytes, or an order in which nibbles
    are multiplied as whole numbers and scaled once a group."""

    outputs: int
    block: int
    warps: int
    stages: int
    programs: int = 0
    early: bool = False
    whole: bool = False
    in_bytes: bool = False
    readied: bool = False

    def span(self, outputs: int, processors: int) -> int:
        """Outputs of each program that holds whole rows."""
        tiles = -(-outputs // self.outputs)
        return -(-tiles // max(1, min(tiles, self.programs * processors))) * self.outputs

    def parts(self, outputs: int, inputs: int, processors: int) -> int:
        """Into how many parts the inputs are cut: a power of two, since each number is compiled for itself."""
        tiles = -(-outputs // self.outputs)
        wanted = self.programs * processors // tiles
        return max(1, min(_floor(wanted), _floor(-(-inputs // self.block) // FEWEST_STEPS), MOST_PARTS))


def _floor(number: int) -> int:
    """The greatest power of two that is not above `number`; 1 below 1."""
    return 1 << (max(1, number).bit_length() - 1)


MOST_OUTPUTS = 16
"""Of a tile of a program that holds whole rows."""
WHOLE: dict[int, tuple[tuple[int, int, int], ...]] = {
    1: ((8, 2, 64), (16, 1, 64), (8, 2, 32), (8, 3, 32), (8, 4, 32), (4, 3, 64), (4, 4, 64), (4, 8, 32)),
    2: ((8, 2, 32), (16, 1, 64), (8, 2, 64), (4, 4, 32)),
    4: ((8, 2, 32), (16, 1, 32), (8, 1, 64), (4, 4, 32)),
}
"""By rows: (warps, programs a processor, elements of a tile that a thread holds), each a launch. Those that leave room on a processor
are slower alone, but the next launch begins beside them."""
MOST_WHOLE = 32
"""Elements of all of several rows that a thread holds. With more, no launch of whole rows was ever the best of a map (seven models of 768
to 20,480 inputs, 2 and 4 rows, one H200), and they take longest to compile."""
FEW: tuple[Tiling, ...] = (
    Tiling(64, 256, 4, 3, 1, early=True),
    Tiling(128, 128, 8, 4, 1, early=True),
    Tiling(64, 128, 4, 4, 2, early=True),
    Tiling(64, 128, 4, 3, 4, early=True),
    Tiling(64, 128, 4, 5, 1, early=True),
    Tiling(16, 256, 4, 4, 2, early=True),
)
"""Of more rows. 64 outputs are the least for Hopper's matrix instructions that read the weight where it has been copied to, in
shared memory. The last two leave room for the next launch: 100 of 227 KiB of shared memory are taken, or 96; the very last makes many
programs of few outputs."""


LONG = 16384
"""Inputs that take a program of 16 warps to hold."""
SHORT = 1024
"""Inputs up to which a program of two whole rows is faster than a matrix product."""


def candidates(rows: int, inputs: int) -> tuple[Tiling, ...]:
    """What the tables say for so many rows and inputs: what measuring chooses from."""
    width, padded = power_of_two(inputs), power_of_two(rows)
    launches = [_whole(width, launch) for launch in WHOLE.get(padded, ()) if rows == 1 or width * padded <= MOST_WHOLE * launch[0] * 32]
    return tuple(dict.fromkeys(launches if rows == 1 else (*launches, *FEW)))


def tiling(rows: int, outputs: int, inputs: int, processors: int) -> Tiling:
    """One of them that serves unless measuring says otherwise: in whole steps of seven models from 125 million to 13 billion parameters
    within a tenth of the best of all, and a twentieth in most (float16, bfloat16, contexts of 512 tokens, one H200)."""
    width, tiles = power_of_two(inputs), -(-outputs // FEW[0].outputs)
    if rows == 1:
        return _whole(width, _lone(outputs, inputs))
    if rows == 2 and width <= SHORT and tiles <= processors:
        return _whole(width, (4, 4, 32))
    # Tiles for which there are not enough processors at a time leave some of them without one: small ones fill the gap.
    return FEW[0] if tiles <= processors else FEW[2]


def _lone(outputs: int, inputs: int) -> tuple[int, int, int]:
    """Of WHOLE, for one row: what such a map takes in a step, between those before and behind it."""
    width = power_of_two(inputs)
    if width >= LONG:
        return 16, 1, 64
    if outputs >= 16 * inputs or (outputs >= 2 * inputs and width >= 2048):
        return 4, 4, 64  # long enough a run for many small programs, whose loads do not wait for each other
    if 2 * outputs > inputs and width >= 4096:
        return 8, 4, 32
    return 8, 2, 64


def _whole(width: int, launch: tuple[int, int, int]) -> Tiling:
    warps, programs, elements = launch
    outputs = min(MOST_OUTPUTS, max(1, elements * warps * 32 // width))
    return Tiling(outputs, width, warps, 1, programs, early=True, whole=True)


def members(rows: int) -> int:
    """Rows of the matrix product that `rows` are padded to."""
    return power_of_two(max(16, rows))
