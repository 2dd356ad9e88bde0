"""Ranks that are processes of this machine, with memory that they share, where Triton interprets kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from forked import begin_interpreting, context
from inferometer.kernels.mailbox import Mailbox

MOST = 4


class StandingRanks:
    """Processes that stand by, so that cases of many files pay once for the start of each."""

    def __init__(self) -> None:
        self._manager = context().Manager()
        self._pool = ProcessPoolExecutor(MOST, mp_context=context(), initializer=begin_interpreting)
        # One that is busy takes no second: all are there when all wait for each other.
        barrier = self._manager.Barrier(MOST)
        for arrived in [self._pool.submit(partial(_arrive, barrier)) for _ in range(MOST)]:
            arrived.result()

    def run(
        self, work: Callable[..., Any], memory: Sequence[Tensor], opened: Callable[..., Any], arguments: Any, seconds: float
    ) -> list[Any]:
        """As `run_sharing`."""
        barrier = self._manager.Barrier(len(memory))
        waiting = [self._pool.submit(partial(_rank, work, opened), rank, memory, barrier, arguments) for rank in range(len(memory))]
        return [each.result(timeout=seconds) for each in waiting]

    def end(self) -> None:
        """Whatever they do."""
        for process in list(self._pool._processes.values()):
            process.kill()
        self._pool.shutdown()
        self._manager.shutdown()


@cache
def standing_ranks() -> StandingRanks:
    """Those of this process."""
    return StandingRanks()


def run_ranks(work: Callable[..., Any], size: int, room: int, programs: int, *arguments: Any) -> list[Any]:
    """What `work(box, *arguments)` returns on each rank, for mailboxes of this shape."""
    memory = [torch.empty(Mailbox.shape(size, room, programs), dtype=torch.int64) for _ in range(size)]
    return run_sharing(work, memory, Mailbox.over, *arguments, seconds=60)


def run_sharing(
    work: Callable[..., Any], memory: Sequence[Tensor], opened: Callable[..., Any], *arguments: Any, seconds: float
) -> list[Any]:
    """What `work(opened(rank, its memory, all addresses), *arguments)` returns on each of at most MOST ranks, each a process.

    What has not ended after so many seconds is an error. After an error the processes are others: they may wait for each other for good.
    """
    ranks = standing_ranks()
    try:
        return ranks.run(work, [each.share_memory_() for each in memory], opened, arguments, seconds)
    except BaseException:
        standing_ranks.cache_clear()
        ranks.end()
        raise


def _arrive(barrier: Any) -> None:
    barrier.wait(120)


def _rank(
    work: Callable[..., Any], opened: Callable[..., Any], rank: int, memory: Sequence[Tensor], barrier: Any, arguments: tuple[Any, ...]
) -> Any:
    mine = opened(rank, memory[rank], [each.data_ptr() for each in memory])
    barrier.wait(60)
    return work(mine, *arguments)
