"""Large sums over ranks: the copy engines carry pieces to the other GPUs while their processors compute the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.engine.parallel.peer_memory import PeerMemory, Peers, open_mailbox
from inferometer.engine.parallel.pieces import SLOTS, moves, pieces
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.part_sum import part_sum, part_sum_norm
from inferometer.kernels.rank_sum import rank_sum

SLOT_BYTES: Final = 32 << 20
"""Of all other ranks' pieces together that lie here at a time."""
_ALIGNED: Final = 256
"""Bytes that slots begin at multiples of."""


class PeerCopies:
    """What ranks do to large tensors together, on the current stream and on one of its own.

    Every rank writes each piece to all others, and adds up what it has and has got: between two that is as much as any way sends. Memory
    for others' pieces is used anew once all ranks have met on the second stream; see `pieces` for why nothing is overwritten. Graphs may
    record it. A row is at most `slot` bytes. meeting, side: where ranks meet, and the second stream.
    """

    def __init__(self, peers: Peers) -> None:
        rank, size = peers.host.rank, peers.host.size
        self._rank, self._size = rank, size
        self.slot = SLOT_BYTES // (size - 1) // _ALIGNED * _ALIGNED
        self._memory = PeerMemory(SLOTS * (size - 1) * self.slot, peers)
        shape = SLOTS, size - 1, self.slot
        self._here = self._memory.own.view(shape)
        # Of ranks behind this one, its place in their memory is one less than its number.
        self._there = [self._memory.of(peer).view(shape)[:, rank - (rank > peer)] for peer in range(size) if peer != rank]
        self.meeting = open_mailbox(32, peers, programs=1, overlaps=False)
        self._word = torch.zeros(4, dtype=torch.float16, device=peers.device)
        make: Any = torch.cuda.Stream
        # Before others: what it launches is next to nothing, and everything waits for it.
        self.side: Any = make(peers.device, priority=-1)

    def serves(self, row_bytes: int) -> bool:
        """Whether rows are not too long."""
        return 0 < row_bytes <= self.slot

    def sum(self, x: Tensor) -> Tensor:
        """x (tokens, width), contiguous, becomes its sum over the ranks."""

        def add(y: Tensor, others: Tensor, rows: slice) -> None:
            part_sum(y, others, self._rank)

        self._exchange(x.shape[0], x.shape[1] * x.element_size(), lambda rows: x[rows], add)
        return x

    def sum_of(self, function: Callable[[Tensor], Tensor], x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        """As `Collective.sum_of`, norms taken where sums are."""
        out = torch.empty_like(residual)

        def add(y: Tensor, others: Tensor, rows: slice) -> None:
            part_sum_norm(y, others, self._rank, residual[rows], norm, out[rows])

        self._exchange(x.shape[0], residual.shape[1] * residual.element_size(), lambda rows: function(x[rows]), add)
        return out

    def gather(self, x: Tensor, out: Tensor) -> Tensor:
        """As `Collective.gather`; x is contiguous."""
        columns = x.shape[1]

        def place(y: Tensor, others: Tensor, rows: slice) -> None:
            for rank, part in enumerate([*others[: self._rank], y, *others[self._rank :]]):
                there = out[rows, rank * columns : (rank + 1) * columns]
                there.copy_(part[:, : there.shape[1]])

        self._exchange(x.shape[0], columns * x.element_size(), lambda rows: x[rows], place)
        return out

    def _exchange(self, rows: int, row_bytes: int, make: Callable[[slice], Tensor], add: Callable[[Tensor, Tensor, slice], None]) -> None:
        """make: a piece of this rank's part, contiguous, of its rows. add: takes it with the others' pieces."""
        main: Any = torch.cuda.current_stream(self._word.device)
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            self._meet()  # all have read what they got before
        cut = pieces(rows, row_bytes, self.slot)
        held: dict[int, tuple[Tensor, Any]] = {}
        for move in moves(len(cut)):
            part = slice(cut[move.piece].start, cut[move.piece].stop)
            if move.what == "make":
                y = make(part)
                held[move.piece] = y, self._send(y, move.piece % SLOTS, main)
            else:
                y, arrived = held.pop(move.piece)
                main.wait_event(arrived)
                others = self._here[move.piece % SLOTS, :, : y.nbytes]
                add(y, _shaped(others, y), part)

    def _send(self, y: Tensor, slot: int, main: Any) -> Any:
        """The event of everybody's pieces having come."""
        self.side.wait_stream(main)
        event: Any = torch.cuda.Event
        arrived = event()
        with torch.cuda.stream(self.side):
            for there in self._there:
                there[slot, : y.nbytes].copy_(y.view(-1).view(torch.uint8), non_blocking=True)
            self._meet()
            arrived.record(self.side)
        return arrived

    def _meet(self) -> None:
        """On the second stream: waits for all ranks, whose copies have ended by then."""
        rank_sum(self._word, self.meeting)


def _shaped(others: Tensor, y: Tensor) -> Tensor:
    """Bytes (ranks, bytes) as tensors like y, each of which is contiguous."""
    parts = others.view(y.dtype)
    return parts.view(parts.shape[0], *y.shape)
