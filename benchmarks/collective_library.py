"""Sums over GPUs by torch's kernels and by NCCL. Parts of collectives.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from collective_rank import CALLS, DTYPE, HIDDEN, LARGE, MIB, SMALL, Rank, Row

from inferometer.engine.parallel.peer_memory import PeerMemory, open_mailbox
from inferometer.kernels.rank_sum import rank_sum


def beside(rank: Rank, first: Callable[[], object], second: Callable[[], object]) -> float:
    """Of a call of each, ten times on two streams."""
    other = torch.cuda.Stream()

    def both() -> None:
        here = torch.cuda.current_stream()
        other.wait_stream(here)
        with torch.cuda.stream(other):
            for _ in range(10):
                second()
        for _ in range(10):
            first()
        here.wait_stream(other)

    return rank.microseconds(both, 1) / 10


def torch_part(rank: Rank) -> Iterator[Row]:
    """torch's kernels over symmetric memory."""
    peers, ops = rank.peers(), torch.ops.symm_mem
    memory, name = PeerMemory(max(LARGE), peers), peers.name
    for nbytes in (*SMALL, *LARGE):
        parts = rank.parts(nbytes)
        x = memory.own[:nbytes].view(DTYPE).view(-1, HIDDEN)
        if nbytes <= MIB:
            x.copy_(parts[rank.rank])
            rank.meet()
            rank.check("one shot", ops.one_shot_all_reduce(x, "sum", name), parts)
            yield {"what": "torch one shot", "bytes": nbytes, "us": rank.microseconds(lambda x=x: ops.one_shot_all_reduce(x, "sum", name))}
        x.copy_(parts[rank.rank])
        rank.meet()
        ops.two_shot_all_reduce_(x, "sum", name)
        rank.check("two shot", x, parts)
        x.zero_()
        took = rank.microseconds(lambda x=x: ops.two_shot_all_reduce_(x, "sum", name), CALLS if nbytes <= MIB else 10)
        yield {"what": "torch two shot", "bytes": nbytes, "us": took}
    yield {"what": "barrier", "bytes": 0, "us": rank.microseconds(lambda: memory._handle.barrier(0))}


def nccl_part(rank: Rank) -> Iterator[Row]:
    """NCCL alone in the process."""
    nccl = rank.nccl()
    for nbytes in (*SMALL, *LARGE):
        parts = rank.parts(nbytes)
        x = parts[rank.rank].clone()
        nccl.sum(x)
        rank.check("NCCL", x, parts)
        x.zero_()
        calls = CALLS if nbytes <= MIB else 10
        yield {"what": "NCCL", "bytes": nbytes, "us": rank.microseconds(lambda x=x: nccl.sum(x), calls)}
    x = torch.zeros(8192, HIDDEN, dtype=DTYPE, device=rank.device)
    y, weight = (torch.randn(shape, device=rank.device).to(DTYPE) for shape in ((8192, 2048), (2048, HIDDEN)))
    out = torch.empty(8192, HIDDEN, dtype=DTYPE, device=rank.device)
    yield {
        "what": "both at once (NCCL)",
        "bytes": x.nbytes,
        "us": beside(rank, lambda: torch.mm(y, weight, out=out), lambda: nccl.sum(x)),
    }


def order_part(rank: Rank) -> Iterator[Row]:
    """All memory first, then captured sums of NCCL, then both in one graph."""
    box = open_mailbox(2048, rank.peers())
    nccl = rank.nccl()
    large, small = (torch.zeros(rows, HIDDEN, dtype=DTYPE, device=rank.device) for rows in (2048, 1))

    def both() -> None:
        nccl.sum(large)
        rank_sum(small, box)

    rank_sum(small, box)
    yield {"what": "ours and NCCL captured together", "bytes": large.nbytes, "us": rank.microseconds(both, 10)}
    yield {"what": "ours and NCCL, not captured", "bytes": large.nbytes, "us": rank.microseconds(both, 10, captured=False)}
    again = open_mailbox(1024, rank.peers())
    yield {"what": "ours, memory made after NCCL", "bytes": small.nbytes, "us": rank.microseconds(lambda: rank_sum(small, again), 10)}
