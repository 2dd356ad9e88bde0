"""Chooses, once for a kind of GPU and a number of ranks, which way sums of which size take: by the time that each takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from inferometer.engine.device_clock import median_seconds
from inferometer.engine.graph import Graph
from inferometer.engine.parallel.gpu_collective import GpuCollective
from inferometer.engine.parallel.sum_choice import LIKE, SIZES, WAYS, Way, best, choice_path, load_choice, offered, save_choice
from inferometer.kernels.norm import NormWeights

CALLS: Final = 10
"""Behind each other, so that the host is no part of their time."""
REPEATS: Final = 5
WIDTH: Final = 4096
TRIALS: Final = 4
"""Sums of numbers drawn anew, of each size, that must have the bits which they are known to have."""


def tune_sums(collective: GpuCollective) -> None:
    """Gives a collective its choice: from the cache folder of rank 0, or measured by all ranks together and kept there.

    Every rank calls it at the same point. Does nothing where there is but one way.
    """
    if not collective.linked:
        return
    path = choice_path(torch.cuda.get_device_name(collective.device), collective.size)
    known = collective.broadcast(dict(load_choice(path)) if collective.rank == 0 else {})
    if not known:
        with torch.cuda.device(collective.device), torch.inference_mode():
            times = {size: times_s(collective, size, offered(collective.size)) for size in SIZES}
            torch.cuda.synchronize()
        known = collective.broadcast(best(times))
        if "nccl" not in known.values():
            collective.disconnect()
        if collective.rank == 0:
            save_choice(path, known)
    collective.choice = known


def agrees(collective: GpuCollective, way: Way, nbytes: int) -> bool:
    """Whether sums of so many bytes are on all ranks what the way that it is like makes of them: to the bit, and normed to a rounding.

    True of a way that is like none, and of one that is not able.
    """
    other = LIKE.get(way)
    shape = nbytes // (2 * WIDTH), WIDTH
    if other is None or not collective.able(way, torch.zeros(shape, dtype=torch.bfloat16, device=collective.device)):
        return True
    norm, same = NormWeights("rms", 1e-5, None, None), True
    for trial in range(TRIALS):
        draw = torch.Generator(collective.device).manual_seed(trial * collective.size + collective.rank)
        x = torch.randn(shape, generator=draw, device=collective.device).to(torch.bfloat16)
        known, own = torch.zeros_like(x), torch.zeros_like(x)
        wanted = collective.norm_by(other, x.clone(), known, norm).clone()
        normed = collective.norm_by(way, x.clone(), own, norm).clone()
        total = collective.sum_by(other, x.clone()).clone()
        same &= torch.equal(collective.sum_by(way, x.clone()), total) and torch.equal(known, own)
        same &= torch.allclose(normed.float(), wanted.float(), rtol=1e-2, atol=1e-3)
    return bool(collective.minimum(int(same)))


def times_s(collective: GpuCollective, nbytes: int, ways: Sequence[Way] = WAYS) -> dict[Way, float]:
    """Seconds of a sum of so many bytes with residual and norm, on the slowest rank, in each of these ways that can."""
    x, residual = torch.zeros(2, nbytes // (2 * WIDTH), WIDTH, dtype=torch.bfloat16, device=collective.device)
    norm = NormWeights("rms", 1e-5, None, None)
    found: dict[Way, float] = {}
    for way in ways:
        if collective.able(way, x):

            def calls(way: Way = way) -> None:
                for _ in range(CALLS):
                    collective.norm_by(way, x, residual, norm)

            calls()  # connected and compiled
            # NCCL is not recorded: see `GpuCollective.able`.
            run = calls if way == "nccl" else Graph(calls, collective.device, torch.cuda.graph_pool_handle())
            found[way] = -collective.minimum(-int(_seconds(run, collective) * 1e9)) / 1e9
    return found


def _seconds(run: Callable[[], object], collective: GpuCollective) -> float:
    """Of one of the calls."""

    def together() -> None:
        torch.cuda.synchronize(collective.device)
        collective.minimum(0)

    return median_seconds(run, collective.device, repeats=REPEATS, before=together) / CALLS
