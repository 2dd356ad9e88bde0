"""Ranks that talk through gloo: over any network, on the host. Tensors of a GPU go through host memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed
from torch import Tensor

from inferometer.kernels.norm import NormWeights
from inferometer.kernels.rank_sum import rank_sum_torch
from inferometer.nn.collective import side_by_side

T = TypeVar("T")

LARGE = 1 << 16
"""Numbers of a sum from which on each rank adds up a part of it and passes that on: less is sent then, in two steps instead of one."""


class GlooCollective:
    """The ranks of a group of torch.distributed's gloo backend, the default one if none is given. Its time limit is that of every call.

    gloo's own sums run around a ring, whose order of additions depends on the number of ranks and on where a number lies: here all
    parts are gathered and added up in the order of the ranks.
    """

    recordable = False

    def __init__(self, group: Any = None) -> None:
        world: Any = torch.distributed.group.WORLD
        self._group = world if group is None else group
        self.rank: int = self._group.rank()
        self.size: int = self._group.size()

    def all_reduce(self, x: Tensor) -> Tensor:
        if x.numel() < LARGE or self.size == 2:
            return rank_sum_torch(self._gathered(x).to(x.device))
        # Every rank gets its own piece of everybody's numbers, padded so that the pieces are equal.
        piece = -(-x.numel() // self.size)
        numbers = torch.nn.functional.pad(x.flatten(), (0, piece * self.size - x.numel())).cpu()
        received = torch.empty_like(numbers)
        torch.distributed.all_to_all_single(_bytes(received), _bytes(numbers), group=self._group)
        total = self._gathered(rank_sum_torch(received.view(self.size, piece)))
        return total.flatten()[: x.numel()].view(x.shape).to(x.device)

    def all_reduce_norm(self, x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        return norm.of(residual, self.all_reduce(x))

    def all_reduce_add(self, x: Tensor, residual: Tensor) -> Tensor | None:
        return None

    def sum_of(self, function: Callable[[Tensor], Tensor], x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        return self.all_reduce_norm(function(x), residual, norm)

    def completed(self, residual: Tensor) -> Tensor:
        return residual

    def kept(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return side_by_side(self._gathered(x).to(x.device), out)

    def minimum(self, number: int) -> int:
        least = torch.tensor([number], dtype=torch.int64)
        torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, group=self._group)
        return int(least)

    def broadcast(self, value: T) -> T:
        # Not by torch.distributed's function for objects, which knows only groups of its registry.
        data = pickle.dumps(value) if self.rank == 0 else b""
        length = -self.minimum(-len(data))
        held = torch.frombuffer(bytearray(data.ljust(length, b"\0")), dtype=torch.uint8)
        self._group.broadcast(held, 0).wait()
        found: T = pickle.loads(held.numpy().tobytes())
        return found

    def _gathered(self, x: Tensor) -> Tensor:
        """Everybody's x on the host: (ranks, *x.shape)."""
        own = x.cpu().contiguous()
        parts = torch.empty((self.size, *own.shape), dtype=own.dtype)
        if own.numel():
            # The group's own method: torch.distributed's function around it takes as long again.
            self._group.allgather([list(_bytes(parts).view(self.size, -1).unbind())], [_bytes(own)]).wait()
        return parts


def _bytes(x: Tensor) -> Tensor:
    """The same memory as bytes, which every backend can send whatever the type."""
    return x.view(-1).view(torch.uint8)
