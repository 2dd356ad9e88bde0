"""Which device a rank computes on, and whether a machine has one for each."""

from __future__ import annotations

import torch

from inferometer.engine.device import resolve_device
from inferometer.errors import UserError, shown


def check_count(count: object) -> int:
    """The number of ranks. Raises UserError for what is none."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UserError(f"--tensor-parallel must be a whole number of at least 1, not {shown(count)}")
    return count


def rank_device(name: str, local_rank: int, local_size: int) -> torch.device:
    """The device of rank `local_rank` of the `local_size` on this machine, for a --device value.

    That is the CPU, or a GPU: the named one and those that follow it. Raises UserError where there are too few.
    """
    first = resolve_device(name)
    if first.type == "cpu":
        return first
    index, there = first.index or 0, torch.cuda.device_count()
    if index + local_size > there:
        behind = f" from {first} on" if index else ""
        raise UserError(
            f"--tensor-parallel {local_size} needs {local_size} GPUs, and this machine has {there - index}{behind}; "
            f"use --tensor-parallel {there - index}, or --device cpu, which takes any number"
        )
    return torch.device("cuda", index + local_rank)
