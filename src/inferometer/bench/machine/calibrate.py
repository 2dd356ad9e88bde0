"""Ten seconds of microbenchmarks: what this device's memory, matrix products, launches and links, and sums over ranks really reach.

Each figure is the median of repeats after a warm-up, and each has its share of the time budget: what would not fit is left out and noted,
and so are figures that another run may not find again.
Bytes are counted as they move: a copy of n bytes reads n and writes n. (The extra read that a CPU does before it writes a cache line is
not counted: it is no use to anybody.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any

import torch

from inferometer.bench.machine.calibration_plan import Plan, default_plan
from inferometer.bench.machine.doubt import doubtful
from inferometer.bench.machine.microbenchmarks import SHARES, Microbenchmarks
from inferometer.bench.machine.rank_sums import SumsError, measured_sums
from inferometer.engine.device import resolve_device
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.catalogue import CPU, match_driver_name
from inferometer.hardware.device import Dtype
from inferometer.hardware.host import Host, read_host


def calibrate(
    device: str = "auto", *, budget_s: float = 10.0, plan: Plan | None = None, progress: Callable[[str], None] | None = None
) -> Calibration:
    """Measure a device ("auto", "cpu", "cuda", "cuda:N") and return what it reached; nothing is stored.

    It takes about `budget_s`, or what `plan` says if that is given, and where sums over ranks are measured some seconds for the start of
    each number of them. `progress` is told each part as it begins. Raises UserError for a device that is not here.
    """
    target = resolve_device(device)
    host = read_host()
    plan = plan or default_plan(target, host, budget_s)
    on_device: AbstractContextManager[Any] = torch.cuda.device(target) if target.type == "cuda" else nullcontext()
    with on_device:
        return _measure(target, host, plan, progress or (lambda part: None))


def _measure(target: torch.device, host: Host, plan: Plan, tell: Callable[[str], None]) -> Calibration:
    cuda = target.type == "cuda"
    began = time.perf_counter()
    bench = Microbenchmarks(target, plan)
    tell("memory")
    copy, read = bench.copy(), bench.read()
    rates: dict[Dtype, float] = {}
    own: dict[Dtype, float] = {}
    dtypes = _products(target)
    for dtype in dtypes:
        tell(f"matrix products in {dtype}")
        rate = bench.matmul(dtype, plan.budget_s * SHARES["matmul"] / len(dtypes))
        if rate is not None:
            rates[dtype] = rate
        rate = bench.own_matmul(dtype, plan.budget_s * SHARES["own_matmul"] / len(dtypes))
        if rate is not None:
            own[dtype] = rate
    tell("launches")
    launch, graph = bench.launch(), bench.graph_kernel() if cuda else None
    incoming = outgoing = peer = word = None
    if cuda:
        tell("host link")
        incoming, outgoing = bench.link()
        tell("link between GPUs")
        peer, word = bench.peer()
        torch.cuda.empty_cache()
    doubt = doubtful(bench.figures, bench.doubts)
    if doubt is not None:
        bench.notes.append(doubt)
    sums = _sums(target, plan, bench.notes, tell)
    name = torch.cuda.get_device_name(target) if cuda else host.model
    return Calibration(
        device=str(target),
        device_name=name,
        slug=match_driver_name(name, torch.cuda.get_device_properties(target).total_memory) if cuda else CPU,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        torch_version=torch.__version__,
        threads=None if cuda else torch.get_num_threads(),
        seconds_spent=time.perf_counter() - began,
        copy_bandwidth_bytes_s=copy,
        read_bandwidth_bytes_s=read,
        matmul_flop_s=rates,
        own_matmul_flop_s=own,
        launch_s=launch,
        graph_kernel_s=graph,
        host_to_device_bytes_s=incoming,
        device_to_host_bytes_s=outgoing,
        peer_bytes_s=peer,
        peer_sum_s=word,
        sums_s=sums,
        samples=dict(bench.samples),
        notes=tuple(bench.notes),
    )


def _sums(target: torch.device, plan: Plan, notes: list[str], tell: Callable[[str], None]) -> dict[int, dict[int, float]]:
    """By number of ranks and bytes; of what could not be measured a note says why."""
    found: dict[int, dict[int, float]] = {}
    for count in plan.ranks:
        tell(f"sums over {count} ranks")
        try:
            found[count] = measured_sums(target, count)
        except SumsError as error:
            notes.append(f"sums over {count} ranks: {error}")
    return found


def _products(device: torch.device) -> tuple[Dtype, ...]:
    """The operand types whose products the device computes itself; emulated ones would say nothing of the hardware."""
    if device.type == "cpu":
        return ("float32", "bfloat16", "float16")
    major, minor = torch.cuda.get_device_capability(device)
    capability = 10 * major + minor
    if torch.version.hip is not None:
        return ("float32", "float16", "bfloat16")
    dtypes: list[Dtype] = ["float32", "float16"]
    if capability >= 80:
        dtypes += ["tf32", "bfloat16"]
    if capability >= 75:
        dtypes.append("int8")
    if capability >= 89:
        dtypes.append("fp8")
    return tuple(dtypes)
