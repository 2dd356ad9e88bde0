"""How decode attention is spread over a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.kernels.support import Table, Tiles, look_up, power_of_two

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
ALONE_EARLY: Table = (
    (
        (7, 5),
        (
            (64, Tiles(block=128, warps=4, stages=2)),
            (128, Tiles(block=64, warps=4, stages=2)),
            (256, Tiles(block=32, warps=4, stages=2)),
            (1024, Tiles(block=16, warps=4, stages=2)),
        ),
    ),
)
"""The same where all programs begin at once. What matters is what they leave: the launch behind brings its weights while this one runs,
if it finds room on the processors, and where it does not, every launch of the layer starts late. With a stage less steps of 16 rows of
544 keys, 16 heads of 128, took an H200 1.57 ms, 1.67 with ALONE; of 4 rows of 768, 32 heads of 64, 1.23 and 1.27."""
ALONE_FEW: Table = (
    (
        (7, 5),
        (
            (64, Tiles(block=128, warps=2, stages=2)),
            (128, Tiles(block=64, warps=2, stages=2)),
            (256, Tiles(block=32, warps=2, stages=2)),
            (512, Tiles(block=16, warps=2, stages=2)),
            (1024, Tiles(block=16, warps=4, stages=2)),
        ),
    ),
)
"""The same of few contexts, where there is little to read: one row of 900 keys, 16 heads of 128, took a step of 1.02 ms, 1.04 with
ALONE_EARLY and 1.18 with ALONE; beside int8 weights, 32 heads and 600 keys, 2.24, 2.30 and 2.37. 4 rows of 1,500 keys 1.41, 1.40 and 1.48:
two warps keep less under way."""
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
GROUPED_FEW: Table = (
    (
        (8, 0),
        (
            (256, Tiles(block=32, warps=4, stages=2, queries=64)),
            (512, Tiles(block=16, warps=4, stages=2, queries=32)),
            (1024, Tiles(block=16, warps=4, stages=2, queries=16)),
        ),
    ),
    GROUPED[1],
)
"""The same as ALONE_FEW is of ALONE, for groups: GROUPED holds 96 KiB of a processor's shared memory. A step of llama-3.1-8b alone took
4.07 ms where it takes 4.41 with GROUPED at 7,000 keys."""
GROUPED_ONCE: Table = (
    (
        (8, 0),
        (
            (256, Tiles(block=64, warps=4, stages=1, queries=64)),
            (512, Tiles(block=32, warps=4, stages=1, queries=32)),
            (1024, Tiles(block=16, warps=4, stages=1, queries=16)),
        ),
    ),
    GROUPED[1],
)
"""The same where a part of a context is one block, which needs no shared memory to wait in: 3.77 ms with it, 4.78 with GROUPED at 128
keys, 3.82 and 4.42 at 1,800; of pages in 8 bits 3.83 and 4.37, 3.87 and 4.23."""
SHORT = 512
"""Keys of the longest context of those."""
FEW_MEMBERS = 16
"""Query heads of a program of GROUPED_SHORT."""
RESIDENT = 4
"""Programs that run on a processor at a time, about."""
AHEAD = 4
"""Programs for each processor up to which keys are fetched ahead: what is not resident early fetches nothing early."""
MOST_PARTS = 64
FEWEST, FEW, MANY = 32, 64, 2048
"""Keys that are worth a program of their own on a card that is all but idle, on an idle one, and on a full one."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Each context is cut into up to `parts` parts of equal length, but none for fewer than `least` keys. The last of several to end
    joins them."""

    parts: int
    least: int


def launch_for(
    programs: int, split: Cut, longest: int, processors: int, *, members: int, narrow: bool, card: tuple[int, int], head_bytes: int
) -> Tiles:
    """How to launch. programs: of whole contexts, which are cut as `split` says; longest: no context is above it; members: query heads of
    a program that share a key head, 1 for heads with keys of their own; narrow: keys are in 8 bits; card: compute capability;
    head_bytes: of a key head as a program holds it."""
    early = programs * split.parts <= AHEAD * processors
    # From half of the processors on, attention itself is what takes the time.
    few = 2 * programs <= processors
    short = longest <= SHORT and not early and not narrow
    if members == 1:
        table = ALONE_NARROW if narrow else (ALONE_FEW if few else ALONE_EARLY) if early else ALONE_SHORT if short else ALONE
        return look_up(table, card, head_bytes)
    if few:
        once = look_up(GROUPED_ONCE, card, head_bytes)
        return once if longest <= split.parts * once.block else look_up(GROUPED_FEW, card, head_bytes)
    return look_up(GROUPED_SHORT if short and members <= FEW_MEMBERS else GROUPED, card, head_bytes)


def cut(programs: int, longest: int, processors: int, *, members: int) -> Cut:
    """As many parts as fill the card, if `programs` do not; and no part so long that the card waits for it at the end.

    programs: of whole contexts. longest: no context is above it. members: as in `launch_for`.

    The number of parts is a power of two, and only three lengths are `least`: each pair is compiled for itself.
    """
    wanted = RESIDENT * processors // max(1, programs)
    # To join parts takes as long as a few hundred keys, read by all processors. 32 heads and int8 weights at 600 keys took a step of
    # 2.24 ms in parts of 83 keys and 2.37 of 42; 16 heads at 544 keys 1.01 in parts of 76 and 0.97 of 38.
    worth = FEWEST if members > 1 or 8 * programs <= processors else FEW
    filling = min(wanted, longest // worth) if longest >= 4 * worth else 1
    if filling > 1:
        least, parts = worth, max(1 << (filling.bit_length() - 1), power_of_two(-(-longest // MANY)))
    else:
        least, parts = MANY, power_of_two(max(1, -(-longest // MANY)))
    return Cut(min(parts, MOST_PARTS), least)
