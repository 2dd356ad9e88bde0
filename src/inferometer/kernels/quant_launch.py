"""How the product of few rows and a weight in few bits is spread over a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from inferometer.kernels.quant_weight import Kind, QuantWeight
from inferometer.kernels.skinny_launch import MOST_ROWS, Tiling, members
from inferometer.kernels.support import capability, power_of_two

WORD_INPUTS: dict[Kind, int] = {"int8": 4, "int4": 8, "fp8": 4}
"""Inputs of a word of 32 bits."""
ROW_REGISTERS = 64
"""Of a thread, for all rows."""
WHOLE: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    1: ((4, 3, 32, 0), (8, 3, 32, 0), (8, 2, 32, 0), (4, 4, 32, 0), (8, 2, 16, 0)),
    2: ((8, 2, 16, 1), (4, 4, 16, 1), (16, 1, 16, 1)),
    4: ((8, 2, 16, 1), (4, 3, 16, 1), (16, 1, 16, 1)),
}
"""By rows: (warps, programs a processor, words of a tile that a thread holds, tiles fetched ahead), each a launch. To fetch nothing ahead
is faster, and so is room for the next launch's first programs: int8 at one row took 17.5 us with (4, 3, 32, 0), 19.8 with (4, 4, 32, 1)
and 23.9 with four tiles ahead (16384 x 4096, H200)."""
WHOLE_LONG: tuple[tuple[int, int, int, int], ...] = ((8, 2, 32, 0), (4, 3, 32, 0), (8, 3, 32, 0), (4, 4, 32, 0))
"""The same for one row and int8, where inputs are many or outputs very many: as a head 50 us instead of 60 (50272 x 4096, H200)."""
WHOLE_NIBBLES: dict[int, tuple[tuple[int, int, int, int], ...]] = WHOLE | {
    1: ((8, 2, 16, 0), (4, 4, 32, 0), (8, 2, 32, 0), (8, 3, 16, 0), (16, 1, 32, 0)),
}
"""The same for int4."""
WHOLE_FLOATS: dict[int, tuple[tuple[int, int, int, int], ...]] = WHOLE | {
    1: ((4, 4, 32, 0), (8, 2, 32, 0), (2, 8, 32, 0), (4, 3, 32, 0)),
}
"""The same for e4m3."""
LONG, VERY_MANY = 16384, 8
"""Inputs, and outputs an input, of WHOLE_LONG."""
FEW: tuple[tuple[int, int, int, int], ...] = (
    (64, 2, 5, 4), (128, 4, 5, 2), (128, 4, 3, 4),
)  # fmt: skip
"""Of more rows: (outputs, warps, stages, programs a processor). No more programs than have room: a second round would be half empty."""
FEW_NIBBLES: tuple[tuple[int, int, int, int], ...] = (
    (64, 4, 3, 4), (64, 2, 3, 4), (128, 4, 3, 4),
)  # fmt: skip
"""The same for int4."""
MORE: tuple[tuple[int, int, int, int], ...] = ((128, 8, 3, 2), (128, 4, 3, 2), (256, 8, 3, 1), (64, 4, 3, 3))
"""Of more than 32 rows, whose sums take most registers."""
BYTES: tuple[tuple[int, int, int, int, int], ...] = ((128, 256, 8, 3, 1), (128, 128, 4, 4, 2))
"""Of up to 32 rows in bytes: (outputs, inputs an iteration, warps, stages, programs a processor). Not of int4, whose nibbles would be bytes
in registers first: that took 38 us where FEW_NIBBLES took 24 (16 rows, 16384 x 4096, H200)."""
READIED_BYTES: tuple[tuple[int, int, int, int, int], ...] = (
    (64, 256, 4, 4, 2), (128, 256, 8, 4, 1), (128, 256, 4, 4, 1), (64, 256, 4, 6, 1),
)  # fmt: skip
"""The same of 5 rows and more that a launch of their own has put in bytes."""
MANY_BYTES: dict[int, tuple[tuple[int, int, int, int, int], ...]] = {
    64: ((64, 128, 4, 4, 2), (64, 256, 4, 3, 1)),
    128: ((128, 128, 8, 4, 1), (128, 256, 8, 2, 1)),
}
"""The same of more than 32 rows, by how many at most: all of them are in one program. The first of two where outputs are more than inputs:
64 rows took 27 us instead of 34 of 16384 x 4096, and 39 instead of 35 of 4096 x 16384; 128 rows 47 instead of 51, and 71 instead of 65
(H200). Widened as a whole, the same took 93 to 99 us; 256 rows, widened, 101 and 107 us, and 180 and 213 here."""
MOST_READIED_ROWS = max(MANY_BYTES)
"""Of such a launch: beyond, its sums are more than registers hold, and the weight is no longer what matters."""
MANY_WEIGHTS = 1 << 24
"""Weights above which it serves more than 64 rows. A step of doc004-1.3b, whose maps have up to so many, took 1.1 ms more at 128 rows than
with plain weights, and 0.9 where they were widened as a whole; a prompt of 100 tokens of bloomz-7b1, whose maps have more, 8.0 ms and 11.0
(H200)."""
READIED_NIBBLES: tuple[tuple[int, int, int, int, int], ...] = ((128, 256, 4, 3, 2), (64, 256, 4, 2, 4), (64, 256, 4, 3, 3))
"""The same of int4, whose rows such a launch has put in order."""
MOST_WIDENED_ROWS = 64
"""Beyond them the weight is no longer what matters. Widened as a whole first it would be moved five to nine times; up to the last of
BUCKETS tuning decides between the two."""
READIED_FIRST = 16
"""Rows up to which such launches serve on Hopper unless measuring says otherwise: of int4, and of int8 whose outputs are more than its
inputs. Of up to 32, they serve for all of int8, with more outputs a program: 32 rows took 21, 23 and 26 us instead of 28, 28 and 30 of
12288 x 4096, 16384 x 4096 and 4096 x 16384; and for e4m3 whose outputs are more: 18, 22 and 25 us instead of 20, 23 and 24 (H200)."""
READIED_GROUPS = 64, 128
"""Inputs of a group that such a launch serves: four threads read them, whole words each, and an iteration has four groups at most."""
IN_BYTES = (9, 0), (10, 0)
"""Capabilities from the first on and before the second have matrix instructions that read bytes where they were copied to."""
SHARED_BYTES = 227 * 1024
"""Of a processor of those capabilities, for one program."""
SPAN_WORDS = 16
"""Words of a row that four threads read at a time. The inputs of an iteration are two spans: a cache line of each row. Many rows of
int4's two spans would leave no room."""


def words_possible(weight: QuantWeight) -> bool:
    """Whether rows of the weight are whole words, as the kernels of few rows read them."""
    return weight.inputs % WORD_INPUTS[weight.kind] == 0


def quant_candidates(rows: int, weight: QuantWeight) -> tuple[Tiling, ...]:
    """What the tables say for so many rows, those first that serve unless measuring says otherwise (but see `quant_tiling`).

    None where rows are more than `most_rows`, rows of the weight are no whole words, or its groups begin within 32 inputs.
    """
    if rows > most_rows(weight) or not words_possible(weight):
        return ()
    if weight.group is not None and weight.group % 32 and weight.group < weight.inputs:
        return ()
    padded = power_of_two(rows)
    launches = list(_wholes(padded, weight, _whole_table(weight).get(padded, ())))
    block = (1 if weight.kind == "int4" and padded > MOST_ROWS else 2) * SPAN_WORDS * WORD_INPUTS[weight.kind]
    table = MORE if padded > MOST_ROWS else FEW_NIBBLES if weight.kind == "int4" else FEW
    few = [Tiling(outputs, block, warps, stages, programs, early=True) for outputs, warps, stages, programs in table]
    # The launch that readies fewer rows takes longer than they would by themselves.
    readied = padded not in WHOLE and padded <= MOST_ROWS
    hopper = IN_BYTES[0] <= capability(weight.device) < IN_BYTES[1]
    first = readied and rows <= READIED_FIRST and hopper
    if weight.kind == "int4":
        ordered = list(_readied(READIED_NIBBLES, in_bytes=False)) if readied and in_groups(weight) else []
        few = [*ordered, few[0]] if first and ordered else [*few, *ordered]
    elif padded <= MOST_ROWS and hopper:
        split = [each for each in _readied(READIED_BYTES, in_bytes=True) if readied and _has_room(each, padded, weight)]
        if rows > READIED_FIRST:
            split.sort(key=lambda each: each.outputs, reverse=True)
        in_bytes = [Tiling(*sizes, early=True, in_bytes=True) for sizes in BYTES]
        # Of the others none was ever chosen for so many rows there, and each takes seconds to try.
        others = [] if first else few
        few = [*split, *in_bytes, *others] if _readied_first(rows, weight) else [*in_bytes, *split, *others]
    elif hopper and weight.kind == "int8" and weight.activations == "wide":
        many = list(_readied(MANY_BYTES.get(padded, ()), in_bytes=True))
        few = many if weight.outputs > weight.inputs else many[::-1]
    return tuple(dict.fromkeys((*launches, *few)))


def _readied_first(rows: int, weight: QuantWeight) -> bool:
    """Whether rows that are put in bytes by a launch of their own serve unless measuring says otherwise, on Hopper."""
    wide, more = weight.activations == "wide", weight.outputs > weight.inputs
    if rows <= READIED_FIRST:
        return wide and more
    return wide if weight.kind == "int8" else more


def most_rows(weight: QuantWeight) -> int:
    """That such launches serve on the weight's device."""
    hopper = IN_BYTES[0] <= capability(weight.device) < IN_BYTES[1]
    many = weight.kind == "int8" and weight.activations == "wide" and weight.outputs * weight.inputs > MANY_WEIGHTS
    return MOST_READIED_ROWS if hopper and many else MOST_WIDENED_ROWS


def _whole_table(weight: QuantWeight) -> dict[int, tuple[tuple[int, int, int, int], ...]]:
    if weight.kind == "int4":
        return WHOLE_NIBBLES
    if weight.kind == "fp8":
        return WHOLE_FLOATS
    return WHOLE | {1: WHOLE_LONG} if weight.inputs >= LONG or weight.outputs >= VERY_MANY * weight.inputs else WHOLE


def _readied(table: tuple[tuple[int, int, int, int, int], ...], *, in_bytes: bool) -> Iterator[Tiling]:
    for outputs, block, warps, stages, programs in table:
        yield Tiling(outputs, block, warps, stages, programs, early=True, in_bytes=in_bytes, readied=True)


def _has_room(launch: Tiling, rows: int, weight: QuantWeight) -> bool:
    """Whether what a launch fetches ahead fits into a processor: the weight's bytes, and of each input of a row all numbers that may stand
    for it."""
    numbers = 1 if weight.activations == weight.kind else 3 if weight.kind == "fp8" else 2
    return launch.stages * launch.block * (launch.outputs + numbers * members(rows)) <= SHARED_BYTES


def in_groups(weight: QuantWeight) -> bool:
    """Whether nibbles can be multiplied as whole numbers: rows begin where a thread's words may."""
    return weight.group in READIED_GROUPS and words_possible(weight) and weight.data.shape[1] % (weight.group // 8) == 0


def quant_tiling(rows: int, weight: QuantWeight) -> Tiling | None:
    """The one of them that serves unless measuring says otherwise, as `tiling`; None where there are none.

    Four whole rows, or two for e4m3, are more than registers hold: a step of opt-6.7b at 4 rows took 1.6 to 1.9 times the best, and 1.0
    with matrix instructions, some 10 % less again where those read bytes. Two rows of int8 took 20, 22 and 23 us in bytes and 23, 30 and 22
    whole (12288 x 4096, 16384 x 4096, 4096 x 16384, H200).
    """
    launches, padded = quant_candidates(rows, weight), power_of_two(rows)
    if padded in (2, 4) and (found := next((launch for launch in launches if launch.in_bytes), None)):
        return found
    if padded == 4 or (padded == 2 and weight.kind == "fp8"):
        return next((launch for launch in launches if not launch.whole), None)
    return next(iter(launches), None)


def _wholes(rows: int, weight: QuantWeight, table: tuple[tuple[int, int, int, int], ...]) -> Iterator[Tiling]:
    """A program holds its rows in registers: two bytes an input, or four for fp8, in as many warps as a row of the weight takes."""
    each = WORD_INPUTS[weight.kind]
    width = power_of_two(-(-weight.inputs // each))
    for warps, programs, held, ahead in table:
        inputs = width * each // (32 * min(warps, max(1, width // 128)))
        if rows * inputs * (4 if weight.kind == "fp8" else 2) // 4 <= ROW_REGISTERS:
            tile = min(64, max(1, held * 32 * warps // width))
            yield Tiling(tile, width * each, warps, 1 + ahead, programs, early=True, whole=True)


def words_of(weight: QuantWeight) -> torch.Tensor:
    """int32 (outputs, inputs / inputs of a word). Raises ValueError where rows are no whole words."""
    if not words_possible(weight):
        raise ValueError(f"rows of {weight.inputs} inputs in {weight.kind} are no whole words")
    return weight.data.view(torch.int32)
