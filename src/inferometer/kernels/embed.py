"""What opens a sweep: tokens and positions become hidden states, and the block table takes in new pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.norm import ELEMENTS, WIDEST, NormWeights, standardised
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.support import constexpr, early, kernel, power_of_two, tl, usable, wait_for_inputs


@dataclass(frozen=True, slots=True)
class Tokens:
    """ids: int64 (tokens,), where negative the newest token of seat -1 - id. newest: int64 (seats,); None where no id is negative.

    held: the tokens whose rows the table has, one after another; those of others are zeros. None where it has all.
    """

    ids: Tensor
    newest: Tensor | None = None
    held: range | None = None

    @property
    def known(self) -> Tensor:
        """int64 (tokens,), all of them tokens."""
        if self.newest is None:
            return self.ids
        return torch.where(self.ids < 0, self.newest[(-1 - self.ids).clamp_(min=0)], self.ids)


@dataclass(frozen=True, slots=True)
class TokenTable:
    """matrix: (tokens, hidden), contiguous, plain or in int8 with a scale a token. dtype: of activations."""

    matrix: Tensor | QuantWeight
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.matrix.device

    @property
    def hidden(self) -> int:
        """Numbers of a token."""
        return self.matrix.shape[1]

    @property
    def scaled(self) -> bool:
        """Whether it is in few bits."""
        return isinstance(self.matrix, QuantWeight)

    @property
    def numbers(self) -> Tensor:
        """(tokens, hidden), before scales."""
        return self.matrix.data if isinstance(self.matrix, QuantWeight) else self.matrix

    @property
    def scales(self) -> Tensor:
        """(tokens,); where there are none, something that is not read."""
        return self.matrix.scale if isinstance(self.matrix, QuantWeight) else self.matrix

    def rows(self, ids: Tensor) -> Tensor:
        """int64 (tokens,) -> (tokens, hidden) in `dtype`, computed in float32 and rounded once."""
        if isinstance(self.matrix, QuantWeight):
            return self.matrix.picked(ids).dequantised().to(self.dtype)
        return functional.embedding(ids, self.matrix)


@dataclass(frozen=True, slots=True)
class Entries:
    """What the block table is to hold where. table: int32 (seats, stride). seats, columns, pages: int64 (entries,)."""

    table: Tensor
    seats: Tensor
    columns: Tensor
    pages: Tensor

    def write(self) -> None:
        """By torch's operations."""
        self.table[self.seats, self.columns] = self.pages.to(torch.int32)


@dataclass(frozen=True, slots=True)
class Positions:
    """Learned ones. table: (positions, hidden). at: int64 (tokens,), to which `offset` is added."""

    table: Tensor
    at: Tensor
    offset: int


def embed(
    tokens: Tokens,
    table: TokenTable,
    positions: Positions | None = None,
    kind: Tensor | None = None,
    norm: NormWeights | None = None,
    entries: Entries | None = None,
) -> Tensor:
    """norm(table[token] + positions + kind), each step rounded to the type of activations: (tokens, hidden). In one launch on a GPU.

    table: (vocabulary, hidden). kind: (hidden,), of the one type that all tokens have. entries: at most one for each token,
    written besides. Each of them None where there is none.

    Moves 2 * tokens * hidden elements, and tokens * hidden more of positions.
    """
    if usable(table.device) and table.hidden <= WIDEST:
        return embed_triton(tokens, table, positions, kind, norm, entries)
    return embed_torch(tokens, table, positions, kind, norm, entries)


def embed_torch(
    tokens: Tokens,
    table: TokenTable,
    positions: Positions | None = None,
    kind: Tensor | None = None,
    norm: NormWeights | None = None,
    entries: Entries | None = None,
) -> Tensor:
    """The reference."""
    if entries is not None:
        entries.write()
    x = table.rows(tokens.known) if tokens.held is None else _of_held(tokens.known, tokens.held, table)
    if positions is not None:
        x = x + functional.embedding(positions.at + positions.offset, positions.table)
    if kind is not None:
        x = x + kind
    return x if norm is None else norm.of(x)


def _of_held(ids: Tensor, held: range, table: TokenTable) -> Tensor:
    ours = (ids >= held.start) & (ids < held.stop)
    return table.rows((ids - held.start).masked_fill(~ours, 0)).masked_fill(~ours[:, None], 0)


def embed_triton(
    tokens: Tokens,
    table: TokenTable,
    positions: Positions | None = None,
    kind: Tensor | None = None,
    norm: NormWeights | None = None,
    entries: Entries | None = None,
) -> Tensor:
    """The kernel."""
    count, hidden, numbers = tokens.ids.shape[0], table.hidden, table.numbers
    out = torch.empty((count, hidden), dtype=table.dtype, device=table.device)
    if count == 0:
        return out
    assert numbers.is_contiguous()
    assert tokens.ids.is_contiguous()
    width = power_of_two(hidden)
    newest = tokens.ids if tokens.newest is None else tokens.newest
    place_table, at, offset = (numbers, tokens.ids, 0) if positions is None else (positions.table, positions.at, positions.offset)
    assert place_table.is_contiguous()
    weights = (None, None) if norm is None else (norm.weight, norm.bias)
    factor, shift = (numbers if each is None else each for each in weights)
    first, last = (0, 0) if tokens.held is None else (tokens.held.start, tokens.held.stop)
    blocks = (tokens.ids,) * 4
    if entries is not None:
        assert entries.seats.shape[0] <= count
        blocks = entries.table, entries.seats, entries.columns, entries.pages
    _embed.launch(
        (count,), tokens.ids, newest, numbers, table.scales, place_table, at, numbers if kind is None else kind, factor, shift, *blocks,
        out, 0.0 if norm is None else norm.epsilon, offset, 0 if entries is None else entries.table.stride(0),
        0 if entries is None else entries.seats.shape[0], first, last, hidden=hidden, width=width,
        continued=tokens.newest is not None, cut=tokens.held is not None, scaled=table.scaled,
        placed=positions is not None, kinded=kind is not None, normed=None if norm is None else norm.kind,
        weighted=weights[0] is not None, biased=weights[1] is not None, entered=entries is not None,
        num_warps=min(32, max(1, width // (32 * ELEMENTS))), **early(table.device),
    )  # fmt: skip
    return out


@kernel("newest", "at", "seats", "columns", "pages", "offset", "block_row", "entries", "first", "last")
def _embed(
    ids: Any, newest: Any, table: Any, scales: Any, places: Any, at: Any, kind: Any, factor: Any, shift: Any, blocks: Any, seats: Any,
    columns: Any, pages: Any, out: Any, epsilon: Any, offset: Any, block_row: Any, entries: Any, first: Any, last: Any,
    hidden: constexpr, width: constexpr, continued: constexpr, cut: constexpr, scaled: constexpr, placed: constexpr, kinded: constexpr,
    normed: constexpr, weighted: constexpr, biased: constexpr, entered: constexpr, early: constexpr,
) -> None:  # fmt: skip
    """One token."""
    wait_for_inputs(early)
    row = tl.program_id(0)
    token = tl.load(ids + row)
    if placed:
        position = tl.load(at + row) + offset
    if entered:
        real_entry = row < entries
        seat, column = tl.load(seats + row, mask=real_entry, other=0), tl.load(columns + row, mask=real_entry, other=0)
        page = tl.load(pages + row, mask=real_entry, other=0).to(tl.int32)
        tl.store(blocks + seat * block_row + column, page, mask=real_entry)
    if continued:
        token = tl.where(token < 0, tl.load(newest + tl.maximum(-1 - token, 0)), token)
    i = tl.arange(0, width)
    real = i < hidden
    held = real
    if cut:
        held = real & (token >= first) & (token < last)
        token = tl.where((token >= first) & (token < last), token - first, 0)
    x = tl.load(table + token * hidden + i, mask=held, other=0)
    if scaled:
        x = (x.to(tl.float32) * tl.load(scales + token)).to(out.dtype.element_ty)
    if placed:
        x = (x.to(tl.float32) + tl.load(places + position * hidden + i, mask=real, other=0).to(tl.float32)).to(x.dtype)
    if kinded:
        x = (x.to(tl.float32) + tl.load(kind + i, mask=real, other=0).to(tl.float32)).to(x.dtype)
    if normed is not None:
        value = standardised(x.to(tl.float32), real, hidden, epsilon, normed == "layer")
        if weighted:
            value = value * tl.load(factor + i, mask=real, other=0).to(tl.float32)
        if biased:
            value = value + tl.load(shift + i, mask=real, other=0).to(tl.float32)
        x = value.to(x.dtype)
    tl.store(out + row.to(tl.int64) * hidden + i, x, mask=real)
