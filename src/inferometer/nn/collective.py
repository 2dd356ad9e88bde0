"""What the ranks of a tensor-parallel model say to each other, as the model sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import torch
from torch import Tensor

from inferometer.kernels.mailbox import PROGRAMS, ROOM_WORDS, Mailbox
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_sum import adds, rank_sum_add, rank_sum_norm, sums_rows
from inferometer.kernels.support import processors, usable

T = TypeVar("T")


class Collective(Protocol):
    """The way between the ranks that share a model: every rank calls the same methods in the same order, with tensors of equal shapes.

    What a call returns is equal to the bit on all ranks, and no number of it depends on others beside it or on how many there are.
    Calls on a GPU are queued on the current stream; where `recordable`, graphs may record them. Whatever a rank that has failed does to
    the others, a call ends: it raises RuntimeError within the time limit that the collective was made with.

    rank, size: this one, of how many.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def recordable(self) -> bool:
        """Whether graphs may record calls."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every rank's x, (tokens, width), contiguous: added up in float32 in the order of the ranks and rounded once. May lie
        where x did."""
        ...

    def all_reduce_norm(self, x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        """norm(residual + the sum of every rank's x), which residual, (tokens, hidden) and equal on all ranks, becomes before it is normed.

        As `all_reduce` and then `kernels.norm.norm`, with the roundings of the two. May lie where x did, or where the next call but one
        will write: see `kept`. A residual of many tokens becomes so in part, other rows on each rank, which is enough for further calls
        of this and of `sum_of` on the same rows; see `completed`.
        """
        ...

    def all_reduce_add(self, x: Tensor, residual: Tensor) -> Tensor | None:
        """residual + the sum of every rank's x, both (tokens, hidden) and rounded, where residual was; None, and nothing done, for
        tensors for which that takes no less than `all_reduce_norm`. As what follows may norm in its own launch."""
        ...

    def sum_of(self, function: Callable[[Tensor], Tensor], x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        """all_reduce_norm(function(x), residual, norm), for a function of each row of x (tokens, inputs) by itself.

        The first rows may be added up while the function computes the last.
        """
        ...

    def completed(self, residual: Tensor) -> Tensor:
        """A residual, (tokens, hidden), as `all_reduce_norm` and `sum_of` leave it, with all its rows on all ranks."""
        ...

    def kept(self, x: Tensor) -> Tensor:
        """What a call has returned, in memory that no later call writes to."""
        ...

    def gather(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Every rank's x, (rows, columns) of any type, side by side in the order of the ranks: (rows, columns * size), bit for bit.

        x: its last dimension is contiguous, its rows may be apart. out: where it goes, of x's type with a contiguous last dimension; as
        many columns as it is short of are left out at the end.
        """
        ...

    def minimum(self, number: int) -> int:
        """The least of every rank's number. Waits for all ranks; for setting up."""
        ...

    def broadcast(self, value: T) -> T:
        """Rank 0's value, which can be pickled. Waits for all ranks; for setting up."""
        ...


class Alone:
    """One rank has nobody to talk to: every call gives back what it is given."""

    rank = 0
    size = 1
    recordable = True

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_reduce_norm(self, x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        return norm.of(residual, x)

    def all_reduce_add(self, x: Tensor, residual: Tensor) -> Tensor | None:
        return None

    def sum_of(self, function: Callable[[Tensor], Tensor], x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        return self.all_reduce_norm(function(x), residual, norm)

    def completed(self, residual: Tensor) -> Tensor:
        return residual

    def kept(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        whole = x if self.size == 1 else x.repeat(1, self.size)
        return whole if out is None else out.copy_(whole[:, : out.shape[1]])

    def minimum(self, number: int) -> int:
        return number

    def broadcast(self, value: T) -> T:
        return value


ALONE: Final = Alone()


class Unlinked(Alone):
    """Takes a rank's part in nothing: what the others would add is left out. For measuring what a rank does by itself.

    On a GPU small sums are launches as they would be with the others, from one memory to itself.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._made: Mailbox | None = None

    def all_reduce_norm(self, x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        box = self._box(x.device)
        return norm.of(residual, x) if box is None or not sums_rows(x, box) else rank_sum_norm(x, residual, norm, box)

    def all_reduce_add(self, x: Tensor, residual: Tensor) -> Tensor | None:
        box = self._box(x.device)
        return None if box is None or not adds(x, box) else rank_sum_add(x, residual, box)

    def _box(self, device: torch.device) -> Mailbox | None:
        if self._made is None and usable(device):
            shape = Mailbox.shape(1, ROOM_WORDS, min(PROGRAMS, processors(device)))
            words = torch.empty(shape, dtype=torch.int64, device=device)
            self._made = Mailbox.over(0, words, [words.data_ptr()])
        return self._made


def side_by_side(parts: Tensor, out: Tensor | None = None) -> Tensor:
    """parts (ranks, rows, columns) as `Collective.gather` returns them."""
    ranks, rows, columns = parts.shape
    across = parts.transpose(0, 1)
    if out is None:
        return across.reshape(rows, ranks * columns)
    whole, rest = divmod(out.shape[1], columns)
    out[:, : whole * columns].view(rows, whole, columns).copy_(across[:, :whole])
    if rest:
        out[:, whole * columns :] = parts[whole, :, :rest]
    return out
