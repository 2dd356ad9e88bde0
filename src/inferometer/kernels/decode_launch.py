"""How decode attention is spread over a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.kernels.support import Table, Tiles, power_of_two

ALONE: Table = (
    (
        (7, 5),
        (
            (64, Tiles(block=128, warps=4, stages=3)),
            (128, Tiles(block=64, warps=4, stages=3)),
            (256, Tiles(block=32, warps=4, stages=3)),
            (1024, Tiles(block=16, warps=4, stages=3)),
        ),
    ),
)
"""A query head with keys of its own. Five programs a processor with 32 KiB of loads under way each. Loads into registers (one
stage) would be fewer at a time: the compiler puts those of the values behind the first use of the keys."""
ALONE_SHORT: Table = (((7, 5), ((256, Tiles(block=16, warps=2, stages=3)), (1024, Tiles(block=16, warps=4, stages=3)))),)
"""The same where there are many programs of few keys each: most of their time they begin and end, so that a processor had better hold
twice as many of half the size. 1,024 rows of 10 to 110 keys and 16 heads of 128 took 131 us, with ALONE 204 (121 at an H200's copy rate);
512 rows of 100 to 400 took 249 with both, 250 of 50 to 1,500 742 and 726."""
ALONE_NARROW: Table = (
    (
        (7, 5),
        (
            (64, Tiles(block=64, warps=4, stages=3)),
            (128, Tiles(block=32, warps=4, stages=3)),
            (512, Tiles(block=16, warps=4, stages=3)),
        ),
    ),
)
"""The same of keys in 8 bits. What is widened takes the room of as many keys again: 48 rows of 1,900 keys, heads of 128, took 0.192 ms
of e4m3 (93 % of an H200's copy rate) and 0.246 of int8 with these, 0.227 and 0.312 with twice the keys."""
GROUPED: Table = (
    (
        (8, 0),
        (
            (256, Tiles(block=64, warps=4, stages=3, queries=64)),
            (512, Tiles(block=32, warps=4, stages=3, queries=32)),
            (1024, Tiles(block=16, warps=4, stages=2, queries=16)),
        ),
    ),
    # Matrix products without tensor cores, which Triton has given up for these GPUs, take many registers.
    ((7, 5), ((256, Tiles(block=16, warps=4, stages=1, queries=16)), (1024, Tiles(block=16, warps=8, stages=1, queries=16)))),
)
"""Query heads that share a key head."""
GROUPED_SHORT: Table = (((8, 0), ((256, Tiles(block=16, warps=2, stages=3, queries=16)), *GROUPED[0][1][1:])), *GROUPED[1:])
"""The same as ALONE_SHORT is of ALONE, for groups of few heads: 512 rows of 10 to 110 keys, 32 heads that share 8, took 41 us, 58 with
GROUPED (32 at an H200's copy rate)."""
SHORT = 512
"""Keys of the longest context of those."""
FEW_MEMBERS = 16
"""Query heads of a program of GROUPED_SHORT."""
RESIDENT = 4
"""Programs that run on a processor at a time, about."""
AHEAD = 4
"""Programs for each processor up to which keys are fetched ahead: what is not resident early fetches nothing early."""
MOST_PARTS = 64
FEW, MANY = 128, 2048
"""Keys that are worth a program of their own on an idle card, and on a full one."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Each context is cut into up to `parts` parts of equal length, but none for fewer than `least` keys. The last of several to end
    joins them."""

    parts: int
    least: int


def table_for(programs: int, longest: int, processors: int, *, members: int, narrow: bool) -> Table:
    """The table that says how to launch. programs: of the whole launch; longest: no context is above it; members: query heads of a program
    that share a key head, 1 for heads with keys of their own; narrow: keys are in 8 bits."""
    short = longest <= SHORT and programs > AHEAD * processors and not narrow
    if members > 1:
        return GROUPED_SHORT if short and members <= FEW_MEMBERS else GROUPED
    if narrow:
        return ALONE_NARROW
    return ALONE_SHORT if short else ALONE


def cut(programs: int, longest: int, processors: int) -> Cut:
    """As many parts as fill the card, if `programs` do not; and no part so long that the card waits for it at the end.

    programs: of whole contexts. longest: no context is above it.

    The number of parts is a power of two, and only two lengths are `least`: each pair is compiled for itself.
    """
    wanted = RESIDENT * processors // max(1, programs)
    # To join parts takes as long as a few hundred keys.
    filling = min(wanted, longest // FEW) if longest >= 4 * FEW else 1
    if filling > 1:
        least, parts = FEW, max(1 << (filling.bit_length() - 1), power_of_two(-(-longest // MANY)))
    else:
        least, parts = MANY, power_of_two(max(1, -(-longest // MANY)))
    return Cut(min(parts, MOST_PARTS), least)
