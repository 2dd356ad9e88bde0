"""A process of benchmarks/collectives.py: one GPU, what it asks of the others, and how calls are timed and checked on it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from inferometer.engine.parallel.nccl import Nccl
from inferometer.engine.parallel.peer_memory import Peers, without_multicast
from inferometer.kernels.norm import NormWeights
from inferometer.nn.gloo_collective import GlooCollective

HIDDEN = 4096
DTYPE = torch.bfloat16
KIB, MIB = 1 << 10, 1 << 20
SMALL = (8 * KIB, 64 * KIB, 256 * KIB, 1 * MIB)
LARGE = (16 * MIB, 64 * MIB)
CALLS = 50
"""In a graph of small sums."""


class Rank:
    """One of the processes."""

    def __init__(self) -> None:
        without_multicast()
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cuda", self.rank)
        torch.cuda.set_device(self.device)
        torch.cuda.init()
        store = dist.FileStore(os.environ["STORE"], self.size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size)
        self.host = GlooCollective()
        self.store = dist.PrefixStore("gpu", store)
        draw = torch.Generator(self.device).manual_seed(0)
        self.weights = torch.randn(2, HIDDEN, device=self.device, generator=draw).to(DTYPE)
        self.norm = NormWeights("layer", 1e-5, self.weights[0], self.weights[1])

    def parts(self, nbytes: int) -> list[Tensor]:
        """Of all ranks."""
        rows = nbytes // (DTYPE.itemsize * HIDDEN)
        made = []
        for rank in range(self.size):
            draw = torch.Generator(self.device).manual_seed(rank)
            made.append(torch.randn(rows, HIDDEN, device=self.device, generator=draw).to(DTYPE))
        return made

    def peers(self) -> Peers:
        found = Peers.of(self.host, dist.PrefixStore("peers", self.store), self.device)
        assert found is not None, "the GPUs do not reach each other"
        return found

    def nccl(self) -> Nccl:
        return Nccl(self.store, self.rank, self.size, self.device, timedelta(seconds=30))

    def meet(self) -> None:
        torch.cuda.synchronize()
        self.host.minimum(0)

    def microseconds(self, run: Callable[[], object], calls: int = CALLS, repeats: int = 15, *, captured: bool = True) -> float:
        """Of one call: the median of replays of a graph of `calls`, on the slowest rank."""
        run()
        torch.cuda.synchronize()

        def repeated() -> None:
            for _ in range(calls):
                run()

        replay: Callable[[], object] = repeated
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="relaxed"):
                repeated()
            replay = graph.replay
        times = []
        for _ in range(repeats):
            self.meet()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / calls)
        return self.slowest(statistics.median(times))

    def slowest(self, value: float) -> float:
        return -self.host.minimum(-int(value * 1e3)) / 1e3

    def same(self, tensor: Tensor) -> bool:
        """Whether all ranks have the same bits."""
        own = tensor.cpu().contiguous().view(torch.uint8).view(1, -1)
        every = self.host.gather(own).view(self.size, -1)
        return bool((every == own).all())

    def check(self, name: str, total: Tensor, parts: list[Tensor]) -> None:
        exact = torch.stack([part.double() for part in parts]).sum(0)
        torch.testing.assert_close(total.double(), exact.view_as(total), rtol=2e-2, atol=3e-2)
        assert self.same(total), f"{name}: ranks differ"


Row = dict[str, Any]
