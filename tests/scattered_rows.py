"""Ranks that keep as little of a residual stream as they may: what a GPU's collective does to sweeps of many tokens, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import Tensor

from inferometer.kernels.norm import NormWeights
from inferometer.nn.collective import Collective
from sharded_work import Case, outputs

T = TypeVar("T")


class Scattered:
    """Of a residual each rank has its own rows and NaNs for others, and what a call returns becomes NaNs with the call after the next."""

    recordable = False

    def __init__(self, ranks: Collective) -> None:
        self._ranks = ranks
        self.rank, self.size = ranks.rank, ranks.size
        self._lent: list[Tensor] = []
        self.sums = 0

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._ranks.all_reduce(x)

    def all_reduce_norm(self, x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        self.sums += 1
        own = self._own(residual)
        total = residual + self._ranks.all_reduce(x)
        kept = total.clone()
        residual.fill_(torch.nan)
        residual[own] = kept[own]
        # A row's sum is right on the rank that has the row.
        every = self._ranks.gather(norm.of(kept).reshape(1, -1)).view(self.size, *total.shape)
        shares = [every[rank][self._own(residual, rank)] for rank in range(self.size)]
        return self._lend(torch.cat(shares))

    def all_reduce_add(self, x: Tensor, residual: Tensor) -> Tensor | None:
        return None

    def sum_of(self, function: Callable[[Tensor], Tensor], x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        return self.all_reduce_norm(function(x), residual, norm)

    def completed(self, residual: Tensor) -> Tensor:
        every = self._ranks.gather(residual.reshape(1, -1)).view(self.size, *residual.shape)
        return residual.copy_(torch.cat([every[rank][self._own(residual, rank)] for rank in range(self.size)]))

    def kept(self, x: Tensor) -> Tensor:
        return x.clone()

    def gather(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        self._lend(torch.empty(0))
        return self._ranks.gather(x, out)

    def minimum(self, number: int) -> int:
        return self._ranks.minimum(number)

    def broadcast(self, value: T) -> T:
        return self._ranks.broadcast(value)

    def _own(self, x: Tensor, rank: int | None = None) -> slice:
        each = -(-x.shape[0] // self.size)
        first = each * (self.rank if rank is None else rank)
        return slice(first, first + each)

    def _lend(self, x: Tensor) -> Tensor:
        self._lent.append(x)
        if len(self._lent) > 2:
            self._lent.pop(0).fill_(torch.nan)
        return x


def scattered_outputs(ranks: Collective, case: Case) -> tuple[dict[str, Any], int]:
    """As `sharded_work.outputs`, the stream carried as on a GPU; and how many sums there were."""
    scattered = Scattered(ranks)
    with mock.patch("inferometer.nn.stream.usable", return_value=True):
        found = outputs(scattered, case)
    return found, scattered.sums
