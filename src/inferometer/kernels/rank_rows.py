"""Large sums over ranks in one launch: every rank adds up rows of its own and writes them to all.

A rank sends the others their rows of its part, waits for its own rows of theirs, adds, norms, and sends what comes of it to all: in all
2 * (size - 1) / size of a part each way, and nothing is added or normed twice. Bytes go straight into memory that the ranks share, with a
flag behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.kernels.flags import announced, awaited, raised, until
from inferometer.kernels.norm import ELEMENTS, WIDEST, NormWeights, standardised
from inferometer.kernels.rank_sum import DTYPES
from inferometer.kernels.support import capability, constexpr, kernel, power_of_two, tl

ROOMS: Final = 2
"""For results, used in turn: a sum may read what the one before it returned while it makes its own."""
KINDS: Final = 2
"""Of flags: a part has come, and a result has."""
ALIGNED: Final = 256
"""Bytes that each of the ranks' places begins at a multiple of."""
VECTOR_BYTES: Final = 16
"""What rows of a sum are whole numbers of, and written in."""
RESIDENT: Final = 2
"""Programs of a launch that goes around which a processor holds at once: while one waits for others, another sends."""
CHUNK: Final = 4096
"""Numbers that are sent as a row where rows mean nothing."""


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Memory that the ranks of a launch share, of one shape on all of them, and what the launch needs to know of them.

    memory: uint8, this rank's, in which lie parts (size, slot bytes), results (ROOMS, size * slot) and flags, int32 (KINDS, size,
    programs), of each program of each rank, counted up. addresses: int64 (size,), where each rank's memory lies. uses: int32
    (programs,), this rank's count of launches, from 1. slot: bytes of a rank's rows of one sum.
    """

    rank: int
    slot: int
    memory: Tensor
    addresses: Tensor
    uses: Tensor

    @property
    def size(self) -> int:
        """Ranks."""
        return self.addresses.numel()

    @property
    def programs(self) -> int:
        """Of a launch, always."""
        return self.uses.numel()

    @property
    def room(self) -> int:
        """Bytes of a result."""
        return self.size * self.slot

    @property
    def flags_at(self) -> int:
        """Where flags begin."""
        return (1 + ROOMS) * self.room

    @property
    def flags(self) -> Tensor:
        """int32 (KINDS, size, programs)."""
        return self.memory[self.flags_at :].view(torch.int32).view(KINDS, self.size, self.programs)

    def result(self, turn: int) -> Tensor:
        """The memory of a result, uint8 (room,)."""
        return self.memory[(1 + turn) * self.room : (2 + turn) * self.room]

    @classmethod
    def nbytes(cls, size: int, slot: int, programs: int) -> int:
        """Of `memory`."""
        return (1 + ROOMS) * size * slot + KINDS * size * programs * 4

    @classmethod
    def over(cls, rank: int, slot: int, programs: int, memory: Tensor, addresses: Sequence[int]) -> SharedRows:
        """In `memory`, uint8 of `nbytes`, which every rank has at its address. slot: bytes.

        Flags are taken down here; nobody may raise one before all ranks have done so.
        """
        assert slot % ALIGNED == 0
        table = torch.tensor(addresses, dtype=torch.int64, device=memory.device)
        made = cls(rank, slot, memory, table, torch.ones(programs, dtype=torch.int32, device=memory.device))
        made.flags.zero_()
        return made


def shared_rows(rows: int, size: int) -> int:
    """How many each rank adds up, the last ranks fewer."""
    return -(-rows // size)


def takes_rows(x: Tensor, shared: SharedRows) -> bool:
    """Whether x (rows, width) goes through a launch."""
    row_bytes = x.shape[1] * x.element_size()
    fits = shared_rows(x.shape[0], shared.size) * row_bytes <= shared.slot
    return x.dtype in DTYPES and x.is_contiguous() and x.shape[1] <= WIDEST and row_bytes % VECTOR_BYTES == 0 and fits


def rank_rows(
    x: Tensor, shared: SharedRows, turn: int, residual: Tensor | None = None, norm: NormWeights | None = None, *, around: bool = False
) -> Tensor:
    """The sum of x over the ranks, in float32 in their order and rounded once; with residual and norm: what `rank_sum_norm` returns.

    x, residual: (rows, width), contiguous, as `takes_rows` says. turn: which room the result lies in, not the last one. Of residual this
    rank's own rows become residual + sum: `shared_rows` of them, behind those of the ranks before it. around: a rank sends rows to each of
    the others by turns, beginning with the one behind it, and one thread of a program signals.
    """
    assert takes_rows(x, shared)
    rows, width = x.shape
    assert residual is None or (residual.shape == x.shape and residual.is_contiguous())
    out = shared.result(turn)[: x.nbytes].view(x.dtype).view(x.shape)
    _launch(x, out, residual, norm, shared, turn, rows, width, shared_rows(rows, shared.size), around)
    return out


def rank_copies(x: Tensor, shared: SharedRows, turn: int) -> Tensor:
    """Every rank's x, contiguous, of a slot at most and a multiple of 2 bytes: (size, numel), side by side in the order of the ranks."""
    assert x.is_contiguous()
    assert x.nbytes <= shared.slot
    unit = torch.int16 if (x.nbytes | x.data_ptr()) % 8 else torch.int64
    own, out = x.view(-1).view(unit), shared.result(turn)[: shared.size * x.nbytes]
    _launch(own, out.view(unit), None, None, shared, turn, own.numel(), 0, own.numel(), False)
    return out.view(x.dtype).view(shared.size, x.numel())


def _launch(
    x: Tensor,
    out: Tensor,
    residual: Tensor | None,
    norm: NormWeights | None,
    shared: SharedRows,
    turn: int,
    rows: int,
    width: int,
    each: int,
    around: bool,
) -> None:
    weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
    held = power_of_two(width or CHUNK)
    item, warps = x.element_size(), min(32, max(1, held // (32 * ELEMENTS)))
    registers = {"maxnreg": min(255, max(64, 65536 // RESIDENT // (32 * warps)))} if around else {}
    _rank_rows.launch(
        (shared.programs,), x, out, x if residual is None else residual, x if weight is None else weight, x if bias is None else bias,
        shared.memory[: shared.room].view(x.dtype), shared.flags, shared.uses, shared.addresses, 0.0 if norm is None else norm.epsilon,
        shared.rank, rows, each, shared.slot // item, (1 + turn) * shared.room // item, shared.flags_at // 4, row=width or CHUNK,
        width=held, size=shared.size, members=power_of_two(shared.size), sums=width > 0, around=around,
        normed=None if norm is None else norm.kind, weighted=weight is not None, biased=bias is not None,
        strict=capability(x.device) >= (7, 0), num_warps=warps, **registers,
    )  # fmt: skip


@kernel("rank", "rows", "each")
def _rank_rows(
    x: Any, out: Any, residual: Any, weight: Any, bias: Any, inbox: Any, flags: Any, uses: Any, boxes: Any, epsilon: Any, rank: Any,
    rows: Any, each: Any, slot: Any, room: Any, raised_at: Any, row: constexpr, width: constexpr, size: constexpr, members: constexpr,
    sums: constexpr, around: constexpr, normed: constexpr, weighted: constexpr, biased: constexpr, strict: constexpr,
) -> None:  # fmt: skip
    """Some rows of each rank. Programs wait for the same program of other ranks alone, and those that begin first end first.

    sums: else every rank's x, of `rows` numbers, goes to its place in all results. slot, room: in numbers, of which a result has few
    enough to be counted in 32 bits; raised_at: in words.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    program, programs = tl.program_id(0), tl.num_programs(0)
    i = tl.arange(0, width)
    inside = i < row
    source = tl.arange(0, members)
    others = (source < size) & (source != rank)
    now = tl.load(uses + program)
    if sums and around:
        for r in range(program, each, programs):
            # What a link carries to a rank comes from one other at a time: with one order for all, three of four would send to the first.
            for step in tl.static_range(1, size):
                peer = (rank + step) % size
                there = tl.load(boxes + peer).to(tl.pointer_type(dtype)) + rank.to(tl.int64) * slot
                first = peer * each
                real = inside & (first + r < rows)
                part = tl.load(x + (first + r) * row + i, mask=real, other=0)
                tl.store(tl.multiple_of(there + r * row + i, 16), part, mask=real)
    elif sums:
        for peer in tl.static_range(size):
            if peer != rank:
                there = tl.load(boxes + peer).to(tl.pointer_type(dtype)) + rank.to(tl.int64) * slot
                first = peer * each
                for r in range(program, tl.minimum(each, rows - first), programs):
                    part = tl.load(x + (first + r) * row + i, mask=inside, other=0)
                    tl.store(tl.multiple_of(there + r * row + i, 16), part, mask=inside)
    if around:
        announced(boxes, raised_at + rank * programs + program, rank, now, size, strict)
        awaited(flags + source * programs + program, others, now, strict)
    else:
        raised(boxes, raised_at + rank * programs + program, rank, now, size, strict)
        until(flags + source * programs + program, others, now, strict)
    if sums:
        first = rank * each
        if weighted:
            factor = tl.load(weight + i, mask=inside, other=0).to(tl.float32)
        if biased:
            shift = tl.load(bias + i, mask=inside, other=0).to(tl.float32)
        for r in range(program, tl.minimum(each, rows - first), programs):
            at = (first + r) * row + i
            own = tl.load(x + at, mask=inside, other=0)
            if normed is not None:
                before = tl.load(residual + at, mask=inside, other=0).to(tl.float32)
            came = inbox + r * row + i
            value = tl.zeros([width], tl.float32)
            for peer in tl.static_range(size):
                part = tl.load(came + peer * slot.to(tl.int64), mask=inside & (peer != rank), other=0)
                part = tl.where(peer == rank, own, part).to(tl.float32)
                # The first is no sum: a zero keeps its sign.
                value = part if peer == 0 else value + part
            value = value.to(dtype)
            if normed is not None:
                stream = (before + value.to(tl.float32)).to(dtype)
                tl.store(residual + at, stream, mask=inside)
                value = standardised(stream.to(tl.float32), inside, row, epsilon, normed == "layer")
                if weighted:
                    value = value * factor
                if biased:
                    value = value + shift
                value = value.to(dtype)
            tl.store(out + at, value, mask=inside)
            if around:
                for step in tl.static_range(1, size):
                    there = tl.load(boxes + (rank + step) % size).to(tl.pointer_type(dtype)) + room
                    tl.store(tl.multiple_of(there + at, 16), value, mask=inside)
            else:
                for peer in tl.static_range(size):
                    if peer != rank:
                        there = tl.load(boxes + peer).to(tl.pointer_type(dtype)) + room
                        tl.store(tl.multiple_of(there + at, 16), value, mask=inside)
    else:
        first = rank.to(tl.int64) * rows
        for start in range(program * row, rows, programs * row):
            real = start + i < rows
            part = tl.load(x + start + i, mask=real, other=0)
            tl.store(out + first + start + i, part, mask=real)
            for peer in tl.static_range(size):
                if peer != rank:
                    there = tl.load(boxes + peer).to(tl.pointer_type(dtype)) + room
                    tl.store(there + first + start + i, part, mask=real)
    if around:
        announced(boxes, raised_at + (size + rank) * programs + program, rank, now, size, strict)
        awaited(flags + (size + source) * programs + program, others, now, strict)
    else:
        raised(boxes, raised_at + (size + rank) * programs + program, rank, now, size, strict)
        until(flags + (size + source) * programs + program, others, now, strict)
    tl.store(uses + program, now + 1)
