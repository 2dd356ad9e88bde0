"""Large sums over ranks: the copy engines carry pieces to the other GPUs while their processors compute the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.engine.parallel.peer_memory import PeerMemory, Peers
from inferometer.engine.parallel.pieces import SLOTS, moves, parts, pieces, rounds
from inferometer.kernels.flags import Flags, wait
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.part_sum import part_sum, part_sum_norm

PIECE_BYTES: Final = 16 << 20
"""Of a piece at most."""
ROOMS: Final = 2
"""For results, used in turn: a sum may read what the one before it returned while it makes its own."""
LONG_AGO: Final = 1 << 30
"""By how much a flag is raised that lets everybody go on for good."""
_PARTS, _SUMS = 0, 1
"""What copies carry: parts of a sum to the rank that adds them up, and then the sum to all."""
_ALIGNED: Final = 256
"""Bytes that slots begin at multiples of."""


@dataclass(frozen=True, slots=True)
class There:
    """Where this rank writes in another's memory. slots: bytes for its part of each piece; rooms: bytes of results; flags: this rank's, by
    kind and slot."""

    rank: int
    slots: tuple[Tensor, ...]
    rooms: tuple[Tensor, ...]
    flags: tuple[tuple[Tensor, ...], ...]

    @classmethod
    def of(cls, rank: int, own: int, inbox: Tensor, results: Tensor, flags: Tensor) -> There:
        """In the memory of a rank, as `PeerCopies._views` has it, for the rank `own`."""
        # Of ranks behind that one, its place is one less than its number.
        return cls(rank, inbox[:, own - (own > rank)].unbind(), results.unbind(), tuple(kind.unbind() for kind in flags[..., own]))


class PeerCopies:
    """What ranks do to large tensors together, on the current stream and one more for each other rank.

    A sum goes in pieces. Every rank adds up its own part of each: the others copy theirs there, and it copies the sum to all, so that
    little is sent and nothing is added twice. Copies take no processor from the products meanwhile, and say by a flag behind them that
    they have come; launches wait for flags, and nobody for anything else.

    Memory for others' parts, and that for results, is used anew without another signal. Who has all of a result knows that each has
    added up all its parts; and who has been sent the first part of a sum knows that its sender has read the result of the one before.
    So a result lies there until the next call but one. Graphs may record all this, in one order on all ranks. A row is at most `slot`
    bytes. sides: the streams.
    """

    def __init__(self, peers: Peers) -> None:
        rank, size = peers.host.rank, peers.host.size
        self._rank, self._size = rank, size
        self.slot = PIECE_BYTES // size // _ALIGNED * _ALIGNED
        self._room = SLOTS * size * self.slot
        inbox, flags = SLOTS * (size - 1) * self.slot, 2 * SLOTS * size * 4
        self._memory = PeerMemory(inbox + ROOMS * self._room + flags, peers)
        views = [self._views(self._memory.own if peer == rank else self._memory.of(peer), inbox) for peer in range(size)]
        self._inbox, self._results, self._flags = views[rank]
        self._flags.zero_()
        self._time = torch.ones(1, dtype=torch.int32, device=peers.device)
        self._word = self._time[0]
        self._there = [There.of(peer, rank, *views[peer]) for peer in range(size) if peer != rank]
        # For when ranks have failed: memory of the host is then not to be had while launches wait.
        self._now, self._up = (torch.empty_like(each, device="cpu", pin_memory=each.is_cuda) for each in (self._time, self._flags))
        self._turn = 0
        make: Any = torch.cuda.Stream
        self.sides: list[Any] = [make(peers.device) for _ in self._there]
        peers.meet()  # no flag is raised before all are down

    def _views(self, memory: Tensor, inbox: int) -> tuple[Tensor, Tensor, Tensor]:
        """A rank's memory as others' parts (slots, size - 1, bytes), results (rooms, bytes) and flags (kinds, slots, size)."""
        results = inbox + ROOMS * self._room
        return (
            memory[:inbox].view(SLOTS, self._size - 1, self.slot),
            memory[inbox:results].view(ROOMS, self._room),
            memory[results:].view(torch.int32).view(2, SLOTS, self._size),
        )

    def serves(self, row_bytes: int) -> bool:
        """Whether rows are not too long."""
        return 0 < row_bytes <= self.slot

    def sum(self, x: Tensor) -> Tensor:
        """x (tokens, width), contiguous, becomes its sum over the ranks."""

        def add(y: Tensor, others: Tensor, rows: slice, out: Tensor, flags: Flags) -> None:
            part_sum(y, others, self._rank, out, flags)

        return self._sum(x, lambda rows: x[rows], add, x)

    def sum_of(self, function: Callable[[Tensor], Tensor], x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        """As `Collective.sum_of`, norms taken where sums are."""

        def add(y: Tensor, others: Tensor, rows: slice, out: Tensor, flags: Flags) -> None:
            part_sum_norm(y, others, self._rank, residual[rows], norm, out, flags)

        return self._sum(residual, lambda rows: function(x[rows]), add, None)

    def gather(self, x: Tensor, out: Tensor) -> Tensor:
        """As `Collective.gather`; x is contiguous."""
        columns = x.shape[1]
        for piece in pieces(x.shape[0], columns * x.element_size(), self.slot):
            y, n = x[piece.start : piece.stop], len(piece)
            result = self._result((self._size * n, columns), x.dtype).view(self._size, n, columns)
            bytes_each = n * columns * x.element_size()
            # Memory for results is free once all have begun.
            self._sent(_PARTS, 0, None)
            wait(self._arriving(_PARTS, 1), ends=False)
            there = slice(self._rank * bytes_each, (self._rank + 1) * bytes_each)
            self._join(self._sent(_SUMS, 0, [(peer.rooms[self._turn][there], _bytes(y)) for peer in self._there]))
            wait(self._arriving(_SUMS, 1), ends=True)
            result[self._rank] = y
            for rank, part in enumerate(result):
                place = out[piece.start : piece.stop, rank * columns : (rank + 1) * columns]
                place.copy_(part[:, : place.shape[1]])
        return out

    def completed(self, residual: Tensor) -> Tensor:
        """residual as `sum_of` leaves it, all rows of which then are what they are on the rank that has added them up."""

        def keep(y: Tensor, others: Tensor, rows: slice, out: Tensor, flags: Flags) -> None:
            wait(flags, ends=False)
            out.copy_(y)

        return self._sum(residual, lambda rows: residual[rows], keep, residual)

    def holds(self, x: Tensor) -> bool:
        """Whether x lies where a later call will write."""
        return self._results.data_ptr() <= x.data_ptr() < self._results.data_ptr() + self._results.nbytes

    def let_go(self) -> None:
        """Raises all flags of this rank, by the current stream, which is waited for.

        By copies from and to the host alone: launches that wait may leave no processor free for another.
        """
        stream: Any = torch.cuda.current_stream(self._time.device)
        self._now.copy_(self._time, non_blocking=True)
        stream.synchronize()
        self._up.fill_(int(self._now) + LONG_AGO)
        self._flags.copy_(self._up, non_blocking=True)
        stream.synchronize()

    def _sum(
        self,
        like: Tensor,
        make: Callable[[slice], Tensor],
        add: Callable[[Tensor, Tensor, slice, Tensor, Flags], None],
        whole: Tensor | None,
    ) -> Tensor:
        """A tensor like this one: whole, if given. make: a piece of this rank's part, contiguous, of its rows. add: what is made of it in
        its own rows, given the others' parts of these once the flags are up; it writes to where the result is to be."""
        found = list(rounds(pieces(like.shape[0], like.shape[1] * like.element_size(), self.slot * self._size)))
        if whole is None and len(found) == 1:
            return self._round(found[0], like, make, add)
        whole = torch.empty_like(like) if whole is None else whole
        for cut in found:
            whole[cut[0].start : cut[-1].stop] = self._round(cut, like, make, add)
        return whole

    def _round(
        self,
        cut: Sequence[range],
        like: Tensor,
        make: Callable[[slice], Tensor],
        add: Callable[[Tensor, Tensor, slice, Tensor, Flags], None],
    ) -> Tensor:
        main: Any = torch.cuda.current_stream(self._time.device)
        columns, first, row_bytes = like.shape[1], cut[0].start, like.shape[1] * like.element_size()
        result = self._result((cut[-1].stop - first, columns), like.dtype)
        arriving = self._arriving(_PARTS, len(cut))
        held: dict[int, tuple[Tensor, list[Any]]] = {}
        events: list[Any] = []
        for move in moves(len(cut)):
            piece = cut[move.piece]
            shares = parts(piece, self._size)
            own = shares[self._rank]
            if move.what == "make":
                y = make(slice(piece.start, piece.stop))
                held[move.piece] = y, self._sent(_PARTS, move.piece, self._parts_of(_bytes(y), piece, shares, row_bytes, move.piece))
                continue
            y, sent = held.pop(move.piece)
            # Copies before launches that wait for copies, also where a device takes the two from one queue.
            for event in sent:
                main.wait_event(event)
            out = result[own.start - first : own.stop - first]
            if own:
                others = self._inbox[move.piece, :, : len(own) * row_bytes].view(like.dtype).view(self._size - 1, len(own), columns)
                add(y[own.start - piece.start : own.stop - piece.start], others, slice(own.start, own.stop), out, arriving.of(move.piece))
            there = slice((own.start - first) * row_bytes, (own.stop - first) * row_bytes)
            here = self._results[self._turn, there]
            events = self._sent(_SUMS, move.piece, [(peer.rooms[self._turn][there], here) for peer in self._there])
        self._join(events)
        wait(self._arriving(_SUMS, len(cut)), ends=True)
        return result

    def _parts_of(self, y: Tensor, piece: range, shares: Sequence[range], row_bytes: int, slot: int) -> list[tuple[Tensor, Tensor]]:
        """Of the bytes of a piece, for each other rank: where its part goes, and that part."""
        found = []
        for peer in self._there:
            share = shares[peer.rank]
            start, stop = (share.start - piece.start) * row_bytes, (share.stop - piece.start) * row_bytes
            found.append((peer.slots[slot][: stop - start], y[start:stop]))
        return found

    def _result(self, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Memory for a result, other than the last."""
        self._turn = (self._turn + 1) % ROOMS
        nbytes = shape[0] * shape[1] * dtype.itemsize
        return self._results[self._turn, :nbytes].view(dtype).view(shape)

    def _arriving(self, kind: int, count: int) -> Flags:
        return Flags(self._flags[kind, :count], self._time, self._rank)

    def _sent(self, kind: int, slot: int, what: Sequence[tuple[Tensor, Tensor]] | None) -> list[Any]:
        """Copies bytes to each other rank that the current stream has made, and raises this rank's flag there. what: for each, where they go,
        and which; None for the flag alone. Returns events of the sides."""
        main: Any = torch.cuda.current_stream(self._time.device)
        make: Any = torch.cuda.Event
        made, sent = make(), []
        made.record(main)
        for index, (side, peer) in enumerate(zip(self.sides, self._there, strict=True)):
            side.wait_event(made)
            with torch.cuda.stream(side):
                if what is not None:
                    there, here = what[index]
                    there.copy_(here, non_blocking=True)
                # Behind the copy in its stream, so that whoever sees the flag has what was copied.
                peer.flags[kind][slot].copy_(self._word, non_blocking=True)
            event = make()
            event.record(side)
            sent.append(event)
        return sent

    def _join(self, sent: Sequence[Any]) -> None:
        main: Any = torch.cuda.current_stream(self._time.device)
        for event in sent:
            main.wait_event(event)


def _bytes(x: Tensor) -> Tensor:
    """The same memory, of a contiguous tensor."""
    return x.view(-1).view(torch.uint8)
