"""How fast linear maps of few rows read their weights: python benchmarks/skinny_gemm.py [--sweep] [--only TEXT] [--rows 1,8].

Beside the copy rate and cuBLAS (functional.linear), measured in the same run; each with bias. Times are of CUDA graphs in which as
many weights follow each other as it takes that none is in the L2 cache from the time before. Every launch is checked against
float32 before it is timed. --sweep tries other launches; what was best is printed last.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

import torch
from gpu_clock import CACHE_BYTES, begin, milliseconds
from torch import Tensor
from torch.nn import functional

from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_launch import Tiling, tiling
from inferometer.kernels.support import power_of_two, processors

DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Shape:
    name: str
    outputs: int
    inputs: int

    def bytes(self, rows: int) -> int:
        return DTYPE.itemsize * (self.outputs * self.inputs + rows * (self.inputs + self.outputs) + self.outputs)

    def __str__(self) -> str:
        return f"{self.name} {self.outputs} x {self.inputs}"


SHAPES = (
    Shape("1.3b qkv", 6144, 2048),
    Shape("1.3b output", 2048, 2048),
    Shape("1.3b up", 8192, 2048),
    Shape("1.3b down", 2048, 8192),
    Shape("1.3b head", 50258, 2048),
    Shape("6.7b qkv", 12288, 4096),
    Shape("6.7b output", 4096, 4096),
    Shape("6.7b up", 16384, 4096),
    Shape("6.7b down", 4096, 16384),
    Shape("6.7b head", 50272, 4096),
    Shape("llama-8b qkv", 6144, 4096),
    Shape("llama-8b up", 28672, 4096),
    Shape("llama-8b down", 4096, 14336),
    Shape("llama-8b head", 128256, 4096),
)
SWEPT = tuple(shape for shape in SHAPES if shape.name.startswith("1.3b") or shape.name in ("6.7b output", "6.7b up", "6.7b down"))


def wholes(inputs: int) -> tuple[Tiling, ...]:
    """Launches of programs that hold whole rows, as many elements of a tile a thread as its registers may take."""
    width = power_of_two(inputs)
    tiles = [
        (max(1, elements * 32 * warps // width), warps, programs)
        for warps in (4, 8, 16) for programs in (1, 2, 4, 8) for elements in (16, 32, 64) if 8 <= warps * programs <= 32
    ]  # fmt: skip
    return tuple(
        Tiling(min(16, outputs), width, warps, 1, programs, early=True, whole=True) for outputs, warps, programs in dict.fromkeys(tiles)
    )


FEW = tuple(
    Tiling(outputs, block, warps, stages, programs, early)
    for early in (False, True)
    for programs in (0, 1, 2, 4)
    for outputs, block, warps, stages in (
        (64, 128, 4, 4), (64, 128, 4, 6), (64, 256, 4, 3), (32, 128, 4, 5), (32, 256, 4, 4), (16, 256, 4, 4), (16, 512, 4, 3),
        (128, 128, 8, 4), (128, 64, 4, 6),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Maps:
    """As many weights of a shape as outgrow the cache."""

    shape: Shape
    weights: Tensor
    bias: Tensor

    @classmethod
    def of(cls, shape: Shape) -> Maps:
        size = shape.outputs * shape.inputs
        count = max(2, -(-CACHE_BYTES // (DTYPE.itemsize * size)))
        weights = torch.empty(count, shape.outputs, shape.inputs, dtype=DTYPE, device="cuda").normal_(0, shape.inputs**-0.5)
        return cls(shape, weights, torch.randn(shape.outputs, dtype=DTYPE, device="cuda"))

    def launches(self, x: Tensor, launch: Tiling | None) -> list[Callable[[], Tensor]]:
        return [partial(skinny_triton, x, weight, self.bias, launch=launch) for weight in self.weights]

    def cublas(self, x: Tensor) -> list[Callable[[], Tensor]]:
        return [partial(functional.linear, x, weight, self.bias) for weight in self.weights]

    def check(self, x: Tensor, launch: Tiling | None) -> None:
        """Twice, since the first launch leaves the counters to the second. Raises AssertionError with what differs."""
        want = functional.linear(x.float(), self.weights[0].float(), self.bias.float())
        first, second = (skinny_triton(x, self.weights[0], self.bias, launch=launch) for _ in range(2))
        torch.testing.assert_close(first.float(), want, atol=2e-2, rtol=2e-2)
        assert torch.equal(first, second), "equal launches give unequal bits"


def compile_ahead(jobs: list[tuple[Shape, int, Tiling]]) -> None:
    """In a process of its own: what is compiled lies in Triton's cache on disk then. A failure is told when the launch is timed."""
    for shape, rows, launch in jobs:
        x = torch.zeros(rows, shape.inputs, dtype=DTYPE, device="cuda")
        weight = torch.zeros(shape.outputs, shape.inputs, dtype=DTYPE, device="cuda")
        with suppress(Exception):
            skinny_triton(x, weight, weight[:, 0].contiguous(), launch=launch)


def distinct(shapes: tuple[Shape, ...], rows: list[int]) -> Iterator[tuple[Shape, int, Tiling]]:
    """What is to be tried, without launches that come to the same thing for a shape."""
    device = torch.device("cuda", torch.cuda.current_device())
    for shape in shapes:
        for count in rows:
            seen = set()
            first = tiling(count, shape.outputs, shape.inputs, processors(device))
            for launch in (first, *(wholes(shape.inputs) if count <= 4 else ()), *(FEW if count > 1 else ())):
                parts = 1 if count == 1 else launch.parts(shape.outputs, shape.inputs, processors(device))
                key = replace(launch, programs=0), parts
                if key not in seen:
                    seen.add(key)
                    yield shape, count, launch


def describe(launch: Tiling) -> str:
    cut = f" programs={launch.programs}" if launch.programs else ""
    return f"({launch.outputs}, {launch.block}, {launch.warps}, {launch.stages}){cut}{' early' if launch.early else ''}"


def table(shapes: tuple[Shape, ...], rows: list[int], copy: float) -> None:
    print(f"{'weight':26} {'rows':>4} {'us':>8} {'of copy':>8} {'cuBLAS':>8} {'of copy':>8}", flush=True)
    for shape in shapes:
        maps = Maps.of(shape)
        for count in rows:
            x = torch.randn(count, shape.inputs, dtype=DTYPE, device="cuda")
            maps.check(x, None)
            ours, theirs = (milliseconds(runs, 15) for runs in (maps.launches(x, None), maps.cublas(x)))
            shares = (shape.bytes(count) / ms / 1e6 / copy for ms in (ours, theirs))
            one, other = (f"{ms * 1e3:8.1f} {share:8.1%}" for ms, share in zip((ours, theirs), shares, strict=True))
            print(f"{shape!s:26} {count:4} {one} {other}{'' if ours <= theirs else '   slower'}", flush=True)


def sweep(shapes: tuple[Shape, ...], rows: list[int], copy: float, seconds: float) -> None:
    started = time.monotonic()
    jobs = list(distinct(shapes, rows))
    workers = min(14, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for first in range(workers):
            pool.submit(compile_ahead, jobs[first::workers])
    print(f"{len(jobs)} launches compiled after {time.monotonic() - started:.0f} s", flush=True)
    relative: dict[tuple[int, Tiling], list[float]] = defaultdict(list)
    left_out = 0
    for shape in shapes:
        maps = Maps.of(shape)
        for count in rows:
            x = torch.randn(count, shape.inputs, dtype=DTYPE, device="cuda")
            times: dict[Tiling, float] = {}
            for launch in [launch for one, other, launch in jobs if (one, other) == (shape, count)]:
                if time.monotonic() - started > seconds:
                    left_out += 1
                    continue
                try:
                    maps.check(x, launch)
                    times[launch] = milliseconds(maps.launches(x, launch), 8)
                except Exception as error:  # that a launch does not fit the card is a result
                    if isinstance(error, torch.AcceleratorError):
                        raise  # nothing runs after a fault
                    print(
                        f"{shape!s:26} {count:4} {describe(launch)}: {type(error).__name__}: {str(error).splitlines()[0][:70]}", flush=True
                    )
            if not times:
                continue
            theirs = milliseconds(maps.cublas(x), 8)
            order = sorted(times, key=lambda launch: times[launch])
            late = [launch for launch in order if not launch.early]
            first = tiling(count, shape.outputs, shape.inputs, processors(x.device))
            for launch in (*order[:2], *late[:1], first):
                share = shape.bytes(count) / times[launch] / 1e6 / copy
                print(
                    f"{shape!s:26} {count:4} {times[launch] * 1e3:8.1f} {share:7.1%} (cuBLAS {theirs * 1e3:.1f})  {describe(launch)}",
                    flush=True,
                )
            for launch, ms in times.items():
                relative[count, launch].append(times[order[0]] / ms)
    print("best over the shapes, mean of best / this:", flush=True)
    for count in rows:
        tried = {launch: values for (own, launch), values in relative.items() if own == count}
        most = max(map(len, tried.values()), default=0)
        means = {launch: math.exp(statistics.fmean(map(math.log, values))) for launch, values in tried.items() if 2 * len(values) > most}
        for launch in sorted(means, key=lambda launch: -means[launch])[:5]:
            print(f"{count:4} rows {means[launch]:6.3f} over {len(tried[launch])}  {describe(launch)}", flush=True)
    if left_out:
        print(f"{left_out} launches were left out for time; --seconds gives more", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="weights whose name contains this")
    parser.add_argument("--rows", default="", help="numbers of rows, comma between (1,2,4,8,16,32; for a sweep 1,8)")
    parser.add_argument("--sweep", action="store_true", help="try other launches")
    parser.add_argument("--seconds", type=float, default=80, help="start no further launch of a sweep after so long (%(default)s)")
    options = parser.parse_args()
    copy = begin(DTYPE).copy_gb_s
    rows = [int(part) for part in (options.rows or ("1,8" if options.sweep else "1,2,4,8,16,32")).split(",")]
    shapes = tuple(shape for shape in (SWEPT if options.sweep and not options.only else SHAPES) if options.only in str(shape))
    with torch.inference_mode():
        if options.sweep:
            sweep(shapes, rows, copy, options.seconds)
        else:
            table(shapes, rows, copy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
