"""Ranks that are processes of this machine, with memory that they share, where Triton interprets kernels."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels.mailbox import Mailbox


def run_ranks(work: Callable[..., Any], size: int, room: int, programs: int, *arguments: Any) -> list[Any]:
    """What `work(box, *arguments)` returns on each rank, for mailboxes of this shape."""
    memory = [torch.empty(Mailbox.shape(size, room, programs), dtype=torch.int64) for _ in range(size)]
    return run_sharing(work, memory, Mailbox.over, *arguments, seconds=60)


def run_sharing(
    work: Callable[..., Any], memory: Sequence[Tensor], opened: Callable[..., Any], *arguments: Any, seconds: float
) -> list[Any]:
    """What `work(opened(rank, its memory, all addresses), *arguments)` returns on each rank, each a process.

    What has not ended after so many seconds is an error.
    """
    context = multiprocessing.get_context("spawn")
    shared = [each.share_memory_() for each in memory]
    with pytest.MonkeyPatch.context() as environment, context.Manager() as manager:
        environment.setenv("TRITON_INTERPRET", "1")
        environment.setenv("OMP_NUM_THREADS", "1")
        barrier = manager.Barrier(len(shared))
        with ProcessPoolExecutor(len(shared), mp_context=context) as pool:
            waiting = [pool.submit(partial(_rank, work, opened), rank, shared, barrier, arguments) for rank in range(len(shared))]
            return [each.result(timeout=seconds) for each in waiting]


def _rank(
    work: Callable[..., Any], opened: Callable[..., Any], rank: int, memory: Sequence[Tensor], barrier: Any, arguments: tuple[Any, ...]
) -> Any:
    torch.set_num_threads(1)
    mine = opened(rank, memory[rank], [each.data_ptr() for each in memory])
    barrier.wait(60)
    return work(mine, *arguments)
