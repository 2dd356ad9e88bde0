"""The way between ranks that compute on GPUs."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch

from inferometer.engine.parallel.gpu_collective import GpuCollective
from inferometer.engine.parallel.peer_memory import without_multicast
from inferometer.engine.parallel.sum_tuning import tune_sums
from inferometer.nn.collective import Collective


def gpu_collective(host: Collective, store: Any, device: torch.device, *, invariant: bool, limit: timedelta) -> Collective:
    """See `GpuCollective`; which way sums take has been measured. Every rank calls this at the same point, before it records anything."""
    without_multicast()
    made = GpuCollective(host, store, device, invariant=invariant, limit=limit)
    if made.notice is not None and made.rank == 0:
        print(f"inferometer: {made.notice}", file=sys.stderr)
    if not invariant:  # sums in the order of ranks have one way each
        tune_sums(made)
    return made
