"""What every rank has, side by side on all of them, in one launch."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from inferometer.kernels.mailbox import Mailbox, collect, post, warps, width
from inferometer.kernels.support import capability, constexpr, kernel, power_of_two, tl

CHUNK: Final = 1024
"""Pieces that a program takes at once."""
UNITS: Final = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""Whole numbers of so many bytes. Each goes in a word of its own: no number at all looks then as if it had not come."""


def gathers(x: Tensor, out: Tensor, box: Mailbox) -> bool:
    """Whether `rank_gather` takes x (rows, columns) into out."""
    if x.numel() == 0 or not x.is_contiguous() or out.stride(1) != 1:
        return False
    return box.holds(-(-x.nbytes // _unit(x, out) // CHUNK), CHUNK)


def rank_gather(x: Tensor, out: Tensor, box: Mailbox) -> Tensor:
    """Puts every rank's x (rows, columns) side by side into out, in the order of the ranks, bit for bit, and returns it.

    out: (rows, up to columns * size), of x's type with a contiguous last dimension, as `gathers` says; columns that it has no place for
    are left out. For few bytes: each sends (size - 1) * x.nbytes twice over or more, which takes one way over the link.
    """
    assert gathers(x, out, box)
    assert out.dtype == x.dtype
    unit = _unit(x, out)
    like, items = UNITS[unit], x.element_size()
    columns, total = x.shape[1] * items // unit, x.nbytes // unit
    held, members = min(CHUNK, total), power_of_two(box.size)
    _rank_gather.launch(
        (min(-(-total // CHUNK), box.programs),), x.view(like), out.view(like), box.words, box.addresses, box.uses, total, columns,
        out.shape[1] * items // unit, out.stride(0) * items // unit, box.room, box.rank, words=held, width=width(held),
        size=box.size, members=members, relaxed=capability(x.device) >= (7, 0), num_warps=warps(held, members), **box.launch,
    )  # fmt: skip
    return out


def _unit(x: Tensor, out: Tensor) -> int:
    """The widest pieces that rows of both are made of."""
    items = x.element_size()
    lengths = x.shape[1] * items, out.shape[1] * items, out.stride(0) * items, out.data_ptr(), x.data_ptr()
    return next(unit for unit in UNITS if all(length % unit == 0 for length in lengths))


@kernel("total", "columns", "out_columns", "out_row", "rank")
def _rank_gather(
    x: Any, out: Any, mine: Any, boxes: Any, uses: Any, total: Any, columns: Any, out_columns: Any, out_row: Any, room: Any, rank: Any,
    words: constexpr, width: constexpr, size: constexpr, members: constexpr, relaxed: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """Some chunks of all pieces, one behind the other over the rows; see `rank_sum` for who waits for whom."""
    if early:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program, programs = tl.program_id(0), tl.num_programs(0)
    word = tl.arange(0, width)
    use = tl.load(uses + program)
    box = (program * 2 + use % 2) * size * room
    base = 0
    for chunk in range(program, tl.cdiv(total, words), programs):
        place = chunk * words + word
        real = (word < words) & (place < total)
        own = tl.load(x + place, mask=real, other=0).to(tl.int64) & 0xFFFFFFFF
        for peer in tl.static_range(size):
            post(tl.load(boxes + peer), box + rank * room + base + word, own, real, relaxed)
        base += words
    source = tl.arange(0, members)[None, :]
    base = 0
    for chunk in range(program, tl.cdiv(total, words), programs):
        place = chunk * words + word
        real = ((word < words) & (place < total))[:, None] & (source < size)
        came = collect(mine + box + source * room + base + word[:, None], real, 0)
        base += words
        row = (place // columns).to(tl.int64)
        column = (place % columns)[:, None] + source * columns
        tl.store(out + row[:, None] * out_row + column, came.to(x.dtype.element_ty), mask=real & (column < out_columns))
    tl.store(uses + program, use + 1)
