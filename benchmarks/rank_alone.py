"""What one rank of several computes by itself: python benchmarks/rank_alone.py [--phase prefill|decode] [--ranks N ...] [--output FILE].

One GPU has a rank's part of a model, and what the other ranks would add is left out. So this is what a prefill, or a decode step, over so
many GPUs takes beside its sums and the waiting for others, and needs one. A small sum is its launch, from the GPU to itself. Of a prefill
a second time has a pause in place of each sum, as long as the estimator has the sum: a GPU that rests between products may run at another
clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from inferometer import LLM, SamplingParams
from inferometer.bench.backends.native import NativeBackend
from inferometer.bench.backends.request import TUNING_SECONDS
from inferometer.bench.machine.environment import environment
from inferometer.engine.device import resolve_device
from inferometer.engine.parallel.ranks import Solo
from inferometer.estimate.deployment import Deployment
from inferometer.estimate.layout import Layout
from inferometer.estimate.limits import limits
from inferometer.estimate.power import power
from inferometer.estimate.run import decode_cost, prefill_step
from inferometer.estimate.stack import find_stack
from inferometer.hardware.catalogue import find_device
from inferometer.hardware.links import link_between
from inferometer.kernels.norm import NormWeights
from inferometer.model.formats import Formats
from inferometer.nn.collective import Unlinked

LENGTH = 1024
RUNS = 5
STEPS = 64
RESTING_W = 300
"""Below which a GPU is between runs."""
LARGE_ROWS = 1024
MIDDLE = 14
"""Kernels, of which a layer has about as many."""
CLOCK_HZ = 1.98e9
"""Of an H200 that nothing holds down; a pause is counted in its ticks, and is timed besides."""


Timed: TypeAlias = Callable[[NativeBackend, int, int, int], list[float]]
"""Milliseconds of so many runs of such a batch; the last is of what its prompts begin with."""


class Paused(Unlinked):
    """Sums of many rows take `pause_s` and add nothing."""

    pause_s = 0.0

    def all_reduce(self, x: Tensor) -> Tensor:
        self._pause(x)
        return x

    def all_reduce_norm(self, x: Tensor, residual: Tensor, norm: NormWeights) -> Tensor:
        self._pause(x)
        return super().all_reduce_norm(x, residual, norm)

    def _pause(self, x: Tensor) -> None:
        if self.pause_s and x.is_cuda and x.shape[0] >= LARGE_ROWS:
            torch.cuda._sleep(round(self.pause_s * CLOCK_HZ))


class Apart(Solo):
    """The first of so many ranks, without the others."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.collectives: dict[bool, Paused] = {}

    def collective(self, device: torch.device, *, invariant: bool) -> Paused:  # type: ignore[override]
        return self.collectives.setdefault(invariant, Paused(0, self.size))


@contextmanager
def clocks() -> Iterator[list[tuple[float, float]]]:
    """MHz and watts of the first GPU, about every 20 ms while the block runs; empty without the driver's tool."""
    found: list[tuple[float, float]] = []
    command = ["nvidia-smi", "-i", "0", "--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader,nounits", "-lms", "20"]
    try:
        watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        yield found
        return
    try:
        time.sleep(0.2)
        yield found
    finally:
        watch.terminate()
        for line in watch.communicate()[0].splitlines():
            try:
                mhz, watts = map(float, line.split(","))
            except ValueError:
                continue
            found.append((mhz, watts))


def prefills_ms(backend: NativeBackend, batch: int, runs: int, seed: int) -> list[float]:
    """Of so many prefills, each from the call to the end of what the device does for it."""
    params, found = SamplingParams(max_new_tokens=2, ignore_eos=True), []
    for run in range(runs):
        prompts = [[(seed + 97 * run + 13 * row + i) % 1000 for i in range(LENGTH)] for row in range(batch)]
        backend.synchronise()
        began = time.perf_counter()
        backend.prefill(prompts, params)
        backend.synchronise()
        found.append((time.perf_counter() - began) * 1e3)
        backend.decode()
        backend.finish()
    return found


def decodes_ms(backend: NativeBackend, batch: int, runs: int, seed: int) -> list[float]:
    """Of a step each, the mean of a run's."""
    params, found = SamplingParams(max_new_tokens=STEPS + 4, ignore_eos=True), []
    for run in range(runs):
        backend.fill([[(seed + 97 * run + 13 * row + i) % 1000 for i in range(LENGTH)] for row in range(batch)], params)
        backend.decode()
        backend.synchronise()
        began = time.perf_counter()
        for _ in range(STEPS):
            backend.decode()
        backend.synchronise()
        found.append((time.perf_counter() - began) * 1e3 / STEPS)
        backend.finish()
    return found


def kernels(times_ms: Timed, backend: NativeBackend, batch: int) -> tuple[dict[str, list[float]], list[tuple[str, float]]]:
    """[times launched, microseconds in all] of each kernel of a run, and under "" what lies between the first's beginning and the
    last's end, and how much of that the device was busy; and those of about a layer in the middle, with microseconds each."""
    if not torch.cuda.is_available():
        return {}, []
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    spans: list[tuple[float, float, str]] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        times_ms(backend, batch, 1, 5000)
        torch.cuda.synchronize()
    for event in profiler.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.name[:80]][0] += 1
            found[event.name[:80]][1] += event.time_range.elapsed_us()
            spans.append((event.time_range.start, event.time_range.end, event.name[:60]))
    busy, end = 0.0, 0.0
    spans.sort()
    for start, stop, _ in spans:
        busy, end = busy + max(0.0, stop - max(start, end)), max(end, stop)
    if spans:
        found[""] = [end - spans[0][0], busy]
    middle = spans[len(spans) // 2 :][:MIDDLE]
    return dict(sorted(found.items(), key=lambda item: -item[1][1])), [(name, stop - start) for start, stop, name in middle]


def expected(phase: str, dtype: str, ranks: int, batch: int, device: str, llm: LLM) -> dict[str, float]:
    """Milliseconds of a prefill or step without its sums, and of one sum, as the estimator has them."""
    gpu = find_device(device)
    link = link_between(gpu, ranks) if ranks > 1 else None
    where = Deployment(
        spec=llm.spec,
        device=gpu,
        stack=find_stack("native"),
        layout=Layout(devices=ranks),
        formats=Formats(dtype=dtype),
        limits=limits(gpu, None, link),
        power=power(gpu),
    )
    cost = where.cost(prefill_step(where, batch, LENGTH)) if phase == "prefill" else decode_cost(where, batch, LENGTH, STEPS + 1)
    sums = [each for each in cost.ops if each.op.name.endswith("all_reduce")]
    ms = sum(each.seconds(cost.clock) for each in sums) * 1e3
    each = ms / sum(one.op.count for one in sums) if sums else 0.0
    return {"whole_ms": cost.ms, "alone_ms": cost.ms - ms, "sum_ms": each, "clock": cost.clock}


def measure(phase: str, model: str, dtype: str, ranks: int, batch: int, device: str) -> dict[str, Any]:
    """A row."""
    times_ms = prefills_ms if phase == "prefill" else decodes_ms
    apart = Apart(ranks)
    llm = LLM(model, weights="dummy", dtype=dtype, tensor_parallel=apart)
    found: dict[str, Any] = {"measured": f"a rank's {phase} by itself, milliseconds", "model": model, "ranks": ranks}
    found |= {"phase": phase, "batch_size": batch, "context": LENGTH, "predicted": expected(phase, dtype, ranks, batch, device, llm)}
    # Of a prefill no launch of a decode step need be measured.
    backend = NativeBackend(llm, tuning_seconds=0.0 if phase == "prefill" else TUNING_SECONDS)
    try:
        backend.prepare(batch, LENGTH + STEPS + 4)
        times_ms(backend, batch, 2, 9000)
        for name, pause_s in (("alone", 0.0), ("paused", found["predicted"]["sum_ms"] / 1e3 * (phase == "prefill"))):
            for each in apart.collectives.values():
                each.pause_s = pause_s
            if name == "paused" and not pause_s:
                continue
            with clocks() as seen:
                times_ms(backend, batch, 2, 100)
                times = times_ms(backend, batch, RUNS, 300)
            found[f"{name}_ms"] = statistics.median(times)
            found[f"{name}_all_ms"] = times
            found[f"{name}_clocks"] = seen[len(seen) // 3 :]
        for each in apart.collectives.values():
            each.pause_s = 0.0
        if torch.cuda.is_available() and "paused_ms" in found:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.cuda._sleep(round(found["predicted"]["sum_ms"] / 1e3 * CLOCK_HZ))
            end.record()
            torch.cuda.synchronize()
            found["pause_ms"] = begin.elapsed_time(end)
        found["kernels"], found["middle"] = kernels(times_ms, backend, batch)
    finally:
        backend.close()
    return found


def shown(row: dict[str, Any]) -> list[str]:
    said = row["predicted"]
    lines = [
        f"{row['model']}, one of {row['ranks']}, {row['phase']} {row['batch_size']} x {row['context']}: {row['alone_ms']:.3f} ms alone"
    ]
    off = f"{100 * (said['alone_ms'] / row['alone_ms'] - 1):+.1f} %"
    lines[0] += f", predicted {said['alone_ms']:.2f} ({off}) and {said['sum_ms'] * 1e3:.1f} us a sum"
    if "paused_ms" in row:
        lines.append(f"  with pauses of {row.get('pause_ms', said['sum_ms']):.3f} ms: {row['paused_ms']:.2f} ms")
    for name in ("alone", "paused"):
        seen = [each for each in row.get(f"{name}_clocks", ()) if each[1] > RESTING_W]
        if seen:
            mhz, watts = (statistics.median(values) for values in zip(*seen, strict=True))
            runs = ", ".join(f"{ms:.1f}" for ms in row[f"{name}_all_ms"])
            lines.append(f"  {name}: {mhz:.0f} MHz, {watts:.0f} W ({len(seen)} readings); runs {runs}")
    lines += [f"  {us:10.1f} us {count:8.0f}  {name or '(busy, of so many us)'}" for name, (count, us) in list(row["kernels"].items())[:12]]
    lines += [f"  {us:10.1f} us in the middle  {name}" for name, us in row["middle"]]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", choices=("prefill", "decode"), default="prefill")
    parser.add_argument("--model", default="bloomz-7b1")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--device", default="h200", help="of the catalogue, for the prediction")
    parser.add_argument("--output", type=Path, help="a file for the rows, JSON lines")
    given = parser.parse_args(arguments)
    for ranks in given.ranks:
        began = time.monotonic()
        row = measure(given.phase, given.model, given.dtype, ranks, given.batch_size, given.device)
        print("\n".join([*shown(row), f"  ({time.monotonic() - began:.1f} s)"]), flush=True)
        if given.output:
            with given.output.open("a") as file:
                file.write(json.dumps(row | {"environment": environment(resolve_device("auto"))}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
