"""Ten seconds of microbenchmarks: what this device's memory, matrix products, launches and host link really reach.

Each figure is the median of repeats after a warm-up, and each has its share of the time budget: what would not fit is left out and noted.
Bytes are counted as they move: a copy of n bytes reads n and writes n. (The extra read that a CPU does before it writes a cache line is
not counted: it is no use to anybody.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any

import torch

from inferometer.engine.device import resolve_device
from inferometer.engine.graph import Graph
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.catalogue import CPU, match_driver_name
from inferometer.hardware.device import Dtype
from inferometer.hardware.host import Host, read_host
from inferometer.kernels.mailbox import Mailbox
from inferometer.kernels.rank_sum import rank_sum
from inferometer.kernels.support import usable

_MIB = 1 << 20
_TORCH_DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
# A sample shorter than this is mostly the clock and the launch; calls are repeated inside it.
_SHORTEST_SAMPLE_S = 2e-3
_SHARES = {"copy": 0.12, "read": 0.14, "matmul": 0.52, "launch": 0.06, "link": 0.1, "peer": 0.06}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure: seconds in all, bytes of the buffers, edges of the square products (rising), operations a launch sample."""

    budget_s: float = 10.0
    buffer_bytes: int
    link_bytes: int = 256 * _MIB
    edges: tuple[int, ...]
    launches: int = 500
    repeats: int = 20

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            raise ValueError(f"budget_s is positive, not {self.budget_s}")
        if min(self.buffer_bytes, self.link_bytes) < 4096:
            raise ValueError("buffers hold at least 4096 bytes")
        if not self.edges or any(edge < 16 or edge % 16 for edge in self.edges) or list(self.edges) != sorted(set(self.edges)):
            raise ValueError(f"edges rise and are multiples of 16, not {self.edges}")
        if min(self.launches, self.repeats) < 1:
            raise ValueError("launches and repeats are at least 1")


def default_plan(device: torch.device, host: Host, budget_s: float = 10.0) -> Plan:
    """Buffers far larger than the last cache, but no more than a small part of the memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size = max(64 * _MIB, min(1024 * _MIB, free // 8))
        return Plan(budget_s=budget_s, buffer_bytes=size, edges=(2048, 4096, 8192) if free > 4096 * _MIB else (1024, 2048))
    size = max(256 * _MIB, 2 * (host.cache_bytes or 0))
    if host.memory_bytes is not None:
        size = max(16 * _MIB, min(size, host.memory_bytes // 16))
    return Plan(budget_s=budget_s, buffer_bytes=size, edges=(256, 512, 1024, 2048), launches=2000)


def calibrate(
    device: str = "auto", *, budget_s: float = 10.0, plan: Plan | None = None, progress: Callable[[str], None] | None = None
) -> Calibration:
    """Measure a device ("auto", "cpu", "cuda", "cuda:N") and return what it reached; nothing is stored.

    It takes about `budget_s`, or what `plan` says if that is given. `progress` is told each part as it begins. Raises UserError for a
    device that is not here.
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
    bench = _Bench(target, plan)
    tell("memory")
    copy, read = bench.copy(), bench.read()
    rates: dict[Dtype, float] = {}
    dtypes = _products(target)
    for dtype in dtypes:
        tell(f"matrix products in {dtype}")
        rate = bench.matmul(dtype, plan.budget_s * _SHARES["matmul"] / len(dtypes))
        if rate is not None:
            rates[dtype] = rate
    tell("launches")
    launch, graph = bench.launch(), bench.graph_kernel() if cuda else None
    incoming = outgoing = peer = word = None
    if cuda:
        tell("host link")
        incoming, outgoing = bench.link()
        tell("link between GPUs")
        peer, word = bench.peer()
        torch.cuda.empty_cache()
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
        launch_s=launch,
        graph_kernel_s=graph,
        host_to_device_bytes_s=incoming,
        device_to_host_bytes_s=outgoing,
        peer_bytes_s=peer,
        peer_sum_s=word,
        samples=dict(bench.samples),
        notes=tuple(bench.notes),
    )


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


@dataclass(slots=True)
class _Bench:
    """The parts, on one device; each returns a rate (or seconds) and leaves the number of its samples and its notes here."""

    device: torch.device
    plan: Plan
    samples: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def copy(self) -> float:
        """Bytes/s, read and written."""
        source = torch.ones(self.plan.buffer_bytes // 4, device=self.device)
        target = torch.empty_like(source)
        seconds = self._seconds("copy", lambda: target.copy_(source), self.plan.budget_s * _SHARES["copy"])
        return 2 * source.nbytes / seconds

    def read(self) -> float:
        """Bytes/s, read only: the better of a sum and of a matrix times a vector, which is what a decode step does to its weights."""
        columns = min(4096, self.plan.buffer_bytes // 16)
        matrix = torch.ones(self.plan.buffer_bytes // 4 // columns, columns, device=self.device)
        vector = torch.ones(columns, device=self.device)
        out = torch.empty(matrix.shape[0], device=self.device)
        share = self.plan.budget_s * _SHARES["read"] / 2
        summed = self._seconds("read_sum", lambda: torch.sum(matrix), share)
        multiplied = self._seconds("read_matrix_vector", lambda: torch.mv(matrix, vector, out=out), share)
        return matrix.nbytes / min(summed, multiplied)

    def matmul(self, dtype: Dtype, share_s: float) -> float | None:
        """FLOP/s of the best square product that fits the share; None, with a note, if the device refuses the type."""
        deadline = time.perf_counter() + share_s
        before = torch.get_float32_matmul_precision()
        best: float | None = None
        flop_s = 0.0
        try:
            torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
            for edge in self.plan.edges:
                left = deadline - time.perf_counter()
                flop = 2 * edge**3
                # A warm-up and three samples must fit, at the rate of the size before.
                if flop_s and 4 * flop / flop_s > left:
                    self.notes.append(f"matmul {dtype}: edges from {edge} left out, they do not fit the time")
                    break
                run = _product(edge, dtype, self.device)
                seconds = self._seconds(f"matmul_{dtype}_{edge}", run, max(left, 0.0) / 2)
                flop_s = flop / seconds
                best = max(best or 0.0, flop_s)
        except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
            self.notes.append(f"matmul {dtype}: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}")
        finally:
            torch.set_float32_matmul_precision(before)
        return best

    def launch(self) -> float:
        """Seconds that the host spends to start one tiny operation, without waiting for it."""
        cell = torch.zeros(1, device=self.device)

        def loop() -> None:
            for _ in range(self.plan.launches):
                cell.add_(1)

        loop()
        deadline = time.perf_counter() + self.plan.budget_s * _SHARES["launch"] / 2
        samples: list[float] = []
        while len(samples) < self.plan.repeats and (not samples or time.perf_counter() < deadline):
            self._wait()
            start = time.perf_counter()
            loop()
            samples.append((time.perf_counter() - start) / self.plan.launches)
        self.samples["launch"] = len(samples)
        return median(samples)

    def graph_kernel(self) -> float | None:
        """Seconds of one tiny kernel among many in a captured graph; None, with a note, if capture fails."""
        cell = torch.zeros(1, device=self.device)
        try:
            cell.add_(1)
            self._wait()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(self.plan.launches):
                    cell.add_(1)
        except RuntimeError as error:
            self.notes.append(f"graph: {str(error).splitlines()[0]}")
            return None
        return self._seconds("graph_kernel", graph.replay, self.plan.budget_s * _SHARES["launch"] / 2) / self.plan.launches

    def link(self) -> tuple[float, float]:
        """Bytes/s from pinned host memory to the device, and back."""
        host = torch.ones(self.plan.link_bytes // 4, pin_memory=True)
        device = torch.ones_like(host, device=self.device)
        share = self.plan.budget_s * _SHARES["link"] / 2
        incoming = self._seconds("host_to_device", lambda: device.copy_(host, non_blocking=True), share)
        outgoing = self._seconds("device_to_host", lambda: host.copy_(device, non_blocking=True), share)
        return host.nbytes / incoming, host.nbytes / outgoing

    def peer(self) -> tuple[float | None, float | None]:
        """Bytes/s to another GPU, and seconds of a sum of one word over both; None, with a note, where this one reaches no other."""
        count = torch.cuda.device_count()
        others = [torch.device("cuda", index) for index in range(count) if index != self.device.index]
        other = next((other for other in others if torch.cuda.can_device_access_peer(self.device, other)), None)
        if other is None:
            self.notes.append("link between GPUs: " + ("they do not reach each other" if others else "there is one GPU"))
            return None, None
        here = torch.ones(self.plan.link_bytes // 4, device=self.device)
        there = torch.ones_like(here, device=other)
        here.copy_(there)  # from here on each may write to the other
        share = self.plan.budget_s * _SHARES["peer"] / 2
        seconds = self._seconds("peer", lambda: there.copy_(here, non_blocking=True), share)
        return here.nbytes / seconds, self._word(other, share) if usable(self.device) and usable(other) else None

    def _word(self, other: torch.device, share_s: float) -> float:
        """Seconds of a sum of one word, many of which follow each other."""
        pair = (self.device, other)
        words = [torch.empty(Mailbox.shape(len(pair), 32, 1), dtype=torch.int64, device=device) for device in pair]
        boxes = [Mailbox.over(rank, words[rank], [each.data_ptr() for each in words]) for rank in range(len(pair))]
        cells = [torch.zeros(4, dtype=torch.float16, device=device) for device in pair]
        for device in pair:
            torch.cuda.synchronize(device)

        def once() -> None:
            for box, cell in zip(boxes, cells, strict=True):
                rank_sum(cell, box)

        once()
        graphs = []
        for device, box, cell in zip(pair, boxes, cells, strict=True):
            torch.cuda.synchronize(device)

            def many(cell: torch.Tensor = cell, box: Mailbox = box) -> None:
                for _ in range(self.plan.launches):
                    rank_sum(cell, box)

            with torch.cuda.device(device):
                graphs.append(Graph(many, device, torch.cuda.graph_pool_handle()))

        def all_of_them() -> None:
            for device, graph in zip(pair, graphs, strict=True):
                with torch.cuda.device(device):
                    graph()

        found = self._seconds("peer_sum", all_of_them, share_s) / self.plan.launches
        for device in pair:
            torch.cuda.synchronize(device)
        return found

    def _seconds(self, name: str, run: Callable[[], Any], share_s: float) -> float:
        """Median seconds of one call, over as many samples as the share allows; three, if one alone takes no more than the share."""
        run()
        deadline = time.perf_counter() + share_s
        first = self._sample(run, 1)
        inner = math.ceil(_SHORTEST_SAMPLE_S / max(first, 1e-9)) if first < _SHORTEST_SAMPLE_S else 1
        samples = [first] if inner == 1 else []
        least = min(3 if first <= share_s else 1, self.plan.repeats)
        while len(samples) < least or (len(samples) < self.plan.repeats and time.perf_counter() + samples[-1] * inner < deadline):
            samples.append(self._sample(run, inner))
        self.samples[name] = len(samples)
        return median(samples)

    def _sample(self, run: Callable[[], Any], inner: int) -> float:
        """Seconds a call, over `inner` calls in a row."""
        if self.device.type == "cpu":
            start_s = time.perf_counter()
            for _ in range(inner):
                run()
            return (time.perf_counter() - start_s) / inner
        stream = torch.cuda.current_stream(self.device)
        event: Any = torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record(stream)
        for _ in range(inner):
            run()
        end.record(stream)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / inner

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _product(edge: int, dtype: Dtype, device: torch.device) -> Callable[[], Any]:
    """A square product of random operands, ready to run. Random, since zeros draw less power and so keep a higher clock."""
    generator = torch.Generator(device).manual_seed(edge)
    if dtype == "int8":
        left, right = (torch.randint(-127, 128, (edge, edge), generator=generator, device=device, dtype=torch.int8) for _ in range(2))
        return lambda: torch._int_mm(left, right.t())
    left, right = (torch.randn(edge, edge, generator=generator, device=device).to(_TORCH_DTYPES[dtype]) for _ in range(2))
    if dtype == "fp8":
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)
