"""What ranks on GPUs say to each other: straight into each other's memory where their links let them, through NCCL elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from inferometer.engine.parallel.nccl import Nccl
from inferometer.engine.parallel.peer_memory import Peers, UnsharedMemoryError, open_mailbox
from inferometer.engine.parallel.peer_rows import PeerRows
from inferometer.engine.parallel.sum_choice import POSTED, SCATTERED, WAYS, Choice, Way, way_for
from inferometer.kernels.mailbox import ROOM_WORDS, Mailbox
from inferometer.kernels.norm import WIDEST, NormWeights
from inferometer.kernels.rank_gather import gathers, rank_gather
from inferometer.kernels.rank_sum import DTYPES, adds, rank_sum, rank_sum_add, rank_sum_norm, rank_sum_torch, sums, sums_rows
from inferometer.nn.collective import Collective, side_by_side

T = TypeVar("T")


class GpuCollective:
    """The ranks of a tensor-parallel model, a GPU each; see `Collective`. All make it at the same point, before they record anything.

    host: how their processes talk. store: of torch.distributed, the same for all, whose names are this object's alone. invariant: no bit
    of a result depends on what is beside it, so that sums are in the order of ranks and norms are launches of their own. limit: of one
    call of NCCL. choice: which way sums take, by size, equal on all ranks; by `tune_sums` once that is called. linked: whether ranks write
    into each other's memory; notice: why not, where they should be able to.
    """

    recordable = True

    def __init__(self, host: Collective, store: Any, device: torch.device, *, invariant: bool, limit: timedelta) -> None:
        self.rank, self.size, self.device = host.rank, host.size, device
        self.choice: Choice = {}
        self._host, self._store, self._limit, self._invariant = host, store, limit, invariant
        self.notice: str | None = None
        self._box: Mailbox | None = None
        self._rows: PeerRows | None = None
        peers = Peers.of(host, store, device)
        if peers is not None:
            try:
                self._box, self._rows = open_mailbox(ROOM_WORDS, peers), PeerRows.open(peers)
            except UnsharedMemoryError as error:
                self.notice = f"the GPUs reach each other, but their memory is not shared ({error}): sums go through NCCL, and are slower"
        self.linked = self._box is not None
        # For when ranks have failed: page-locked memory is then not to be had while launches wait.
        self._words = torch.zeros(1 << 17 if self.linked else 0, dtype=torch.int64, pin_memory=self.linked)

    def all_reduce(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return self._host.all_reduce(x)
        x = x.contiguous()
        return self.sum_by(self.way(x), x)

    def all_reduce_norm(self, x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        x = x.contiguous()
        return self.norm_by(self.way(x), x, residual, norm)

    def all_reduce_add(self, x: Tensor, residual: Tensor) -> Tensor | None:
        x = x.contiguous()
        way = self.way(x)
        if self._invariant or self._box is None or not adds(x, self._box) or way not in POSTED:
            return None
        return rank_sum_add(x, residual, self._box, paired=way == "pairs")

    def sum_of(self, function: Callable[[Tensor], Tensor], x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        rows = self._scattering(residual)
        if rows is None:
            return self.all_reduce_norm(function(x), residual, norm)
        return rows.sum_of(function, x, residual, norm, around=self.way(residual) == "around")

    def completed(self, residual: Tensor) -> Tensor:
        rows = self._scattering(residual)
        return residual if rows is None else rows.completed(residual)

    def kept(self, x: Tensor) -> Tensor:
        return x.clone() if self._rows is not None and self._rows.holds(x) else x

    def _scattering(self, residual: Tensor) -> PeerRows | None:
        """What adds up such a residual, of which each rank then has rows of its own."""
        return None if self._invariant or self.way(residual) not in SCATTERED else self._rows

    def gather(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        x = x.contiguous()
        if out is None:
            out = torch.empty(x.shape[0], x.shape[1] * self.size, dtype=x.dtype, device=x.device)
        if x.numel() == 0 or not x.is_cuda:
            return self._host.gather(x, out)
        if self._box is not None and gathers(x, out, self._box):
            return rank_gather(x, out, self._box)
        if self._rows is not None and self._rows.gathers(x):
            return self._rows.gather(x, out)
        return side_by_side(self._nccl.parts(x), out)

    def minimum(self, number: int) -> int:
        return self._host.minimum(number)

    def broadcast(self, value: T) -> T:
        return self._host.broadcast(value)

    @torch.inference_mode()  # as may have been on where the memory was made, which nobody else may then write to
    def let_go(self, seconds: float) -> bool:
        """Once another rank has failed: ends what waits for it on this device, so that the device can be used, and left. Whether it has.

        Called from any thread. What launches wait for are words in memory of this rank; any words will do. They come by copies from the
        host: launches that wait, and those behind them that have begun early, may leave no processor free. Results are then worth nothing.
        """
        working: Any = torch.cuda.default_stream(self.device)
        make: Any = torch.cuda.Stream
        aside, deadline = make(self.device), time.monotonic() + seconds
        if "_nccl" in self.__dict__:
            self._nccl.close()
        # Every launch takes the words away that it has waited for, and there may be hundreds behind it.
        while not working.query():
            if time.monotonic() > deadline:
                return False
            with torch.cuda.stream(aside):
                if self._rows is not None:
                    self._rows.let_go()
                if self._box is not None:
                    for words in torch.split(self._box.words.view(-1), self._words.numel()):
                        words.copy_(self._words[: words.numel()], non_blocking=True)
            aside.synchronize()
        return True

    def way(self, x: Tensor) -> Way:
        """How `all_reduce` adds up x, (tokens, width)."""
        return way_for(x.nbytes, self.choice, {way: self.able(way, x) for way in WAYS})

    def able(self, way: Way, x: Tensor) -> bool:
        """Whether x, (tokens, width), can be added up in this way, now."""
        if way in POSTED:
            return self._box is not None and sums(x, self._box)
        if way in SCATTERED:
            whole = x.dtype in DTYPES and x.shape[-1] <= WIDEST
            return whole and self._rows is not None and self._rows.serves(x.shape[-1] * x.element_size())
        # Where NCCL was recorded, memory could no longer be shared: a process may do so again for another model.
        return not self.linked or not (self._invariant or torch.cuda.is_current_stream_capturing())

    def sum_by(self, way: Way, x: Tensor) -> Tensor:
        """x, (tokens, width), contiguous, becomes its sum over the ranks, in this way, which is able to. Returns where the sum is."""
        if way in POSTED and self._box is not None:
            return rank_sum(x, self._box, paired=way == "pairs")
        if way in SCATTERED and self._rows is not None:
            return self._rows.sum(x, around=way == "around")
        return x.copy_(rank_sum_torch(self._nccl.parts(x))) if self._invariant else self._nccl.sum(x)

    def norm_by(self, way: Way, x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        """`all_reduce_norm` of x, (tokens, hidden), contiguous, in this way, which is able to."""
        if not self._invariant:
            if way in POSTED and self._box is not None and sums_rows(x, self._box):
                return rank_sum_norm(x, residual, norm, self._box, paired=way == "pairs")
            if way in SCATTERED and self._rows is not None:
                return self._rows.sum_of(lambda some: some, x, residual, norm, around=way == "around")
        return norm.of(residual, self.sum_by(way, x))

    def disconnect(self) -> None:
        """Closes what NCCL holds, until it is needed again."""
        connected = self.__dict__.pop("_nccl", None)
        if connected is not None:
            connected.close()

    @cached_property
    def _nccl(self) -> Nccl:
        return Nccl(self._store, self.rank, self.size, self.device, self._limit)
