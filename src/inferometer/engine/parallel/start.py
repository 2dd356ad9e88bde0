"""How a model comes by its ranks: one alone, others started for it, those that torchrun has started, or those of another model."""

from __future__ import annotations

import os

import torch

from inferometer.engine.parallel.follower import follow
from inferometer.engine.parallel.leader import Leader, lead, start
from inferometer.engine.parallel.placement import check_count
from inferometer.engine.parallel.ranks import SOLO, Follower, Ranks, Solo
from inferometer.engine.parallel.torchrun import Torchrun
from inferometer.errors import UserError


def local_ranks(tensor_parallel: int | Ranks) -> tuple[int, int]:
    """(which of the ranks on this machine this is, how many there are or will be). Raises UserError for what is no number of ranks.

    In a process that torchrun has started as another rank than 0 it does not return: that one follows until rank 0 ends, and ends then.
    """
    if isinstance(tensor_parallel, Leader | Follower | Solo):
        return tensor_parallel.local_rank, tensor_parallel.local_size
    count = check_count(tensor_parallel)
    here = Torchrun.of() if count > 1 else None
    if here is None:
        return 0, count
    if here.size != count:
        raise UserError(f"--tensor-parallel {count}, and torchrun has started {here.size} processes; use --tensor-parallel {here.size}")
    if here.rank:
        raise SystemExit(follow(here))
    return here.local_rank, here.local_size


def ranks_of(tensor_parallel: int | Ranks) -> Ranks:
    """The ranks that a model has by this name, started if they are not there yet.

    Raises RanksError where they do not come up.
    """
    if isinstance(tensor_parallel, Leader | Follower | Solo):
        return tensor_parallel
    count = check_count(tensor_parallel)
    if count == 1:
        return SOLO
    here = Torchrun.of()
    return start(count) if here is None else lead(here)


def share_threads(device: torch.device, local_size: int) -> int:
    """Leaves this process its part of a CPU's cores, as ranks that it starts take theirs. Returns the threads that it had before."""
    before = torch.get_num_threads()
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, before // local_size))
    return before


def end_ranks(ranks: Leader, threads: int) -> None:
    """Ends ranks that were started for a model, and gives this process its threads back."""
    ranks.close()
    torch.set_num_threads(threads)
