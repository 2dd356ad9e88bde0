"""Ranks that are processes of this machine, with mailboxes in memory that they share, where Triton interprets kernels."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from inferometer.kernels.mailbox import Mailbox


def run_ranks(work: Callable[..., Any], size: int, room: int, programs: int, *arguments: Any) -> list[Any]:
    """What `work(box, *arguments)` returns on each rank. What has not ended after a minute is an error."""
    context = multiprocessing.get_context("spawn")
    memory = [torch.empty(Mailbox.shape(size, room, programs), dtype=torch.int64).share_memory_() for _ in range(size)]
    with pytest.MonkeyPatch.context() as environment, context.Manager() as manager:
        environment.setenv("TRITON_INTERPRET", "1")
        environment.setenv("OMP_NUM_THREADS", "1")
        barrier = manager.Barrier(size)
        with ProcessPoolExecutor(size, mp_context=context) as pool:
            waiting = [pool.submit(_rank, work, rank, memory, barrier, arguments) for rank in range(size)]
            return [each.result(timeout=60) for each in waiting]


def _rank(work: Callable[..., Any], rank: int, memory: Sequence[Tensor], barrier: Any, arguments: tuple[Any, ...]) -> Any:
    torch.set_num_threads(1)
    box = Mailbox.over(rank, memory[rank], [each.data_ptr() for each in memory])
    barrier.wait(60)
    return work(box, *arguments)
