"""Large sums over ranks whose GPUs reach each other: every rank adds up rows of its own, and writes them to all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.engine.parallel.peer_memory import PeerMemory, Peers
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_rows import ALIGNED, ROOMS, VECTOR_BYTES, SharedRows, rank_copies, rank_rows, shared_rows
from inferometer.kernels.support import processors

ROOM_BYTES: Final = 64 << 20
"""Of a sum at most; what is larger goes in rounds."""
PROGRAMS: Final = 2
"""Of a launch, for each processor: each has a row at a time."""
FOR_GOOD: Final = 1 << 30
"""By how much a flag is raised that lets everybody who waits for it go on, now and later."""


class PeerRows:
    """What ranks do to large tensors together, on the current stream; see `rank_rows`.

    Memory for others' parts, and that for results, is used anew without another signal. Who has all of a result knows that each has
    added up all its rows; and who has been sent the first part of a sum knows that its sender has read the result of the one before.
    So a result lies there until the next call but one. Graphs may record all this, in one order on all ranks.

    slot: bytes of a rank's rows of one sum.
    """

    def __init__(self, shared: SharedRows, keeps: object = None) -> None:
        """keeps: what the memory lives as long as."""
        self._shared, self._keeps = shared, keeps
        # For when ranks have failed: memory of the host is then not to be had while launches wait.
        likes = shared.uses, shared.flags
        self._now, self._up = (torch.empty_like(each, device="cpu", pin_memory=each.is_cuda) for each in likes)
        self._turn = 0

    @classmethod
    def open(cls, peers: Peers, programs: int | None = None) -> PeerRows:
        """In memory that all ranks share, each of which calls this at the same point. programs: of a launch; None for all that fit."""
        size = peers.host.size
        if programs is None:
            programs = PROGRAMS * peers.host.minimum(processors(peers.device))
        slot = ROOM_BYTES // size // ALIGNED * ALIGNED
        memory = PeerMemory(SharedRows.nbytes(size, slot, programs), peers)
        made = cls(SharedRows.over(peers.host.rank, slot, programs, memory.own, memory.addresses), memory)
        peers.meet()  # no flag is raised before all are down
        return made

    @property
    def slot(self) -> int:
        """Bytes of a rank's rows of one sum."""
        return self._shared.slot

    def serves(self, row_bytes: int) -> bool:
        """Whether rows are not too long, and can be sent in whole vectors."""
        return 0 < row_bytes <= self.slot and row_bytes % VECTOR_BYTES == 0

    def sum(self, x: Tensor, *, around: bool = False) -> Tensor:
        """x (tokens, width), contiguous, becomes its sum over the ranks. around: see `rank_rows`."""
        for rows in self._rounds(x):
            x[rows] = rank_rows(x[rows], self._shared, self._next(), around=around)
        return x

    def sum_of(
        self, function: Callable[[Tensor], Tensor], x: Tensor, residual: Tensor, norm: NormWeights, *, around: bool = False
    ) -> Tensor:
        """As `Collective.sum_of`: of the residual this rank's own rows become what they are to be, and it may lie where the next call but
        one writes."""
        rounds = list(self._rounds(residual))
        out = None if len(rounds) == 1 else torch.empty_like(residual)
        for rows in rounds:
            found = rank_rows(function(x[rows]).contiguous(), self._shared, self._next(), residual[rows], norm, around=around)
            if out is None:
                return found
            out[rows] = found
        assert out is not None
        return out

    def gathers(self, x: Tensor) -> bool:
        """Whether `gather` takes x, (rows, columns)."""
        row_bytes = x.shape[1] * x.element_size()
        return row_bytes <= self.slot and row_bytes % 2 == 0 and x.data_ptr() % 2 == 0

    def gather(self, x: Tensor, out: Tensor) -> Tensor:
        """As `Collective.gather`; x is contiguous, as `gathers` says."""
        columns, most = x.shape[1], self.slot // (x.shape[1] * x.element_size())
        for start in range(0, x.shape[0], most):
            part = x[start : start + most]
            found = rank_copies(part, self._shared, self._next()).view(self._shared.size, *part.shape)
            for rank, theirs in enumerate(found):
                place = out[start : start + most, rank * columns : (rank + 1) * columns]
                place.copy_(theirs[:, : place.shape[1]])
        return out

    def completed(self, residual: Tensor) -> Tensor:
        """residual, (tokens, hidden), as `sum_of` leaves it, all rows of which then are what they are on the rank that has added them
        up."""
        for rows in self._rounds(residual):
            some = residual[rows]
            each = shared_rows(some.shape[0], self._shared.size)
            own = some[each * self._shared.rank :][:each]
            padded = torch.nn.functional.pad(own, (0, 0, 0, each - own.shape[0])).contiguous()
            every = rank_copies(padded, self._shared, self._next()).view(-1, residual.shape[1])
            some.copy_(every[: some.shape[0]])
        return residual

    def holds(self, x: Tensor) -> bool:
        """Whether x lies where a later call will write."""
        first, last = self._shared.result(0).data_ptr(), self._shared.result(ROOMS - 1).data_ptr() + self._shared.room
        return first <= x.data_ptr() < last

    def let_go(self) -> None:
        """Raises all flags of this rank, by the current stream, which is waited for.

        By copies from and to the host alone: launches that wait may leave no processor free for another.
        """
        stream: Any = torch.cuda.current_stream(self._shared.uses.device)
        self._now.copy_(self._shared.uses, non_blocking=True)
        stream.synchronize()
        self._up.fill_(int(self._now.max()) + FOR_GOOD)
        self._shared.flags.copy_(self._up, non_blocking=True)
        stream.synchronize()

    def _rounds(self, x: Tensor) -> Iterator[slice]:
        """Rows of a sum that go together."""
        held = self.slot // (x.shape[1] * x.element_size()) * self._shared.size
        count = -(-x.shape[0] // held)
        each = -(-x.shape[0] // max(1, count))
        for i in range(count):
            yield slice(i * each, min((i + 1) * each, x.shape[0]))

    def _next(self) -> int:
        """The room that the last result does not lie in."""
        self._turn = (self._turn + 1) % ROOMS
        return self._turn
