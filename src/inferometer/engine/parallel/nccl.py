"""Ranks that talk through NCCL, wherever their GPUs are."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor


class Nccl:
    """A communicator of all ranks, in no registry of torch's. Made by all of them together; the first call connects them.

    store: of torch.distributed, the same for all. limit: of one call, after which the process is ended.
    """

    def __init__(self, store: Any, rank: int, size: int, device: torch.device, limit: timedelta) -> None:
        dist: Any = torch.distributed
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        with torch.cuda.device(device):
            self._group = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)
        self._size = size
        self._end = weakref.finalize(self, self._group.abort)

    def close(self) -> None:
        """Lets go of the other ranks. For when nothing is under way any more."""
        self._end()

    def sum(self, x: Tensor) -> Tensor:
        """x, of any shape, contiguous, becomes its sum over the ranks, the same on all; the order of additions is NCCL's."""
        self._group.allreduce([x]).wait()
        return x

    def parts(self, x: Tensor) -> Tensor:
        """Every rank's x, contiguous: (ranks, *x.shape)."""
        found = torch.empty((self._size, *x.shape), dtype=x.dtype, device=x.device)
        if x.numel():
            self._group._allgather_base(found.view(-1).view(torch.uint8), x.view(-1).view(torch.uint8)).wait()
        return found
