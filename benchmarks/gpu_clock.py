"""What the kernel benchmarks share: a clock for launches, and the ceilings that their rates stand beside."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from inferometer.bench.machine.calibrate import calibrate
from inferometer.kernels.support import usable

CACHE_BYTES = 256 * 2**20
"""More than any L2 cache holds, by far."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """copy_gb_s: read and written. gemm_tflop_s: of bfloat16 products. As `inferometer devices --calibrate` measures them."""

    copy_gb_s: float
    gemm_tflop_s: float


def ceilings() -> Ceilings:
    """Measured now, on the current device, in about four seconds.

    Not a copy_ of one's own: that of torch is the driver's, which in a graph stays a fifth (H100) to a third (H200) below what kernels
    reach, so that everything would look better beside it.
    """
    found = calibrate(f"cuda:{torch.cuda.current_device()}", budget_s=4)
    return Ceilings(found.copy_bandwidth_bytes_s / 1e9, found.matmul_flop_s["bfloat16"] / 1e12)


def begin(dtype: torch.dtype) -> Ceilings:
    """The ceilings, printed with the card they are of. Exits with 2 where the kernels cannot run."""
    if not torch.cuda.is_available() or not usable(torch.device("cuda", torch.cuda.current_device())):
        print("needs a CUDA device of compute capability 7.5 or higher, and triton", file=sys.stderr)
        sys.exit(2)
    torch.manual_seed(0)
    found = ceilings()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: copy {found.copy_gb_s:.0f} GB/s, GEMM {found.gemm_tflop_s:.0f} "
        f"TFLOP/s, {dtype}",
        flush=True,
    )
    return found


def milliseconds(launches: Sequence[Callable[[], object]], budget_ms: float = 100) -> float:
    """Of one launch: the median of replays of a graph that holds them all, 5 to 50 of them in about `budget_ms`."""
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < budget_ms and len(times) < 50):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times) / len(launches)
