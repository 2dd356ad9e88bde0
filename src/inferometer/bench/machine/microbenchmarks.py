"""The microbenchmarks of a calibration: copies, reads, matrix products, launches and links of one device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

from inferometer.bench.machine.calibration_plan import Plan
from inferometer.engine.graph import Graph
from inferometer.hardware.device import Dtype
from inferometer.kernels.cpu_library import CpuLibrary, cpu_library
from inferometer.kernels.mailbox import Mailbox
from inferometer.kernels.rank_sum import rank_sum
from inferometer.kernels.support import usable
from inferometer.nn.compiled_model import product

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
SHARES = {"copy": 0.12, "read": 0.14, "matmul": 0.52, "own_matmul": 0.16, "launch": 0.06, "link": 0.1, "peer": 0.06}
"""Of the time budget."""


@dataclass(slots=True)
class Microbenchmarks:
    """The parts, on one device; each returns a rate (or seconds) and leaves the number of its samples and its notes here.

    figures: the samples in seconds that each figure comes from; of several ways or sizes, those of the best. doubts: what is wrong with
    some of them, whatever their samples say.
    """

    device: torch.device
    plan: Plan
    samples: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    _taken: dict[str, list[float]] = field(default_factory=dict)

    def copy(self) -> float:
        """Bytes/s, read and written."""
        source = torch.ones(self.plan.buffer_bytes // 4, device=self.device)
        target = torch.empty_like(source)
        seconds = self._figure("copy", lambda: target.copy_(source), self.plan.budget_s * SHARES["copy"])
        return 2 * source.nbytes / seconds

    def read(self) -> float:
        """Bytes/s, read only: the better of a sum and of a matrix times a vector, which is what a decode step does to its weights."""
        columns = min(4096, self.plan.buffer_bytes // 16)
        matrix = torch.ones(self.plan.buffer_bytes // 4 // columns, columns, device=self.device)
        vector = torch.ones(columns, device=self.device)
        out = torch.empty(matrix.shape[0], device=self.device)
        share = self.plan.budget_s * SHARES["read"] / 2
        summed = self._seconds("read_sum", lambda: torch.sum(matrix), share)
        multiplied = self._seconds("read_matrix_vector", lambda: torch.mv(matrix, vector, out=out), share)
        self.figures["read"] = self._taken["read_sum" if summed < multiplied else "read_matrix_vector"]
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
                    if edge == self.plan.edges[1]:
                        # Threads that wait for each other, as for a core that others hold, make small products equally slow each time.
                        self.doubts[dtype] = f"of the smallest product alone, edge {self.plan.edges[0]}"
                    break
                run = _product(edge, dtype, self.device)
                seconds = self._seconds(f"matmul_{dtype}_{edge}", run, max(left, 0.0) / 2)
                flop_s = flop / seconds
                if best is None or flop_s > best:
                    best, self.figures[dtype] = flop_s, self._taken[f"matmul_{dtype}_{edge}"]
        except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
            self.notes.append(f"matmul {dtype}: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}")
        finally:
            torch.set_float32_matmul_precision(before)
        return best

    def own_matmul(self, dtype: Dtype, share_s: float) -> float | None:
        """FLOP/s of the best of some rows times a square matrix by the kernels that run prompts on a CPU; None where the
        matrix library does."""
        library = cpu_library() if self.device.type == "cpu" and dtype in ("float32", "bfloat16") else None
        if library is None or (dtype == "bfloat16" and library.matrix_units):
            return None
        best: float | None = None
        for edge in self.plan.edges:
            rows, name = min(edge, library.most_tokens), f"own_matmul_{dtype}_{edge}"
            seconds = self._seconds(name, _own_product(library, rows, edge, dtype), share_s / len(self.plan.edges))
            if best is None or 2 * rows * edge**2 / seconds > best:
                best, self.figures[f"own {dtype}"] = 2 * rows * edge**2 / seconds, self._taken[name]
        return best

    def launch(self) -> float:
        """Seconds that the host spends to start one tiny operation, without waiting for it."""
        cell = torch.zeros(1, device=self.device)

        def loop() -> None:
            for _ in range(self.plan.launches):
                cell.add_(1)

        loop()
        deadline = time.perf_counter() + self.plan.budget_s * SHARES["launch"] / 2
        samples: list[float] = []
        while len(samples) < self.plan.repeats and (not samples or time.perf_counter() < deadline):
            self._wait()
            start = time.perf_counter()
            loop()
            samples.append((time.perf_counter() - start) / self.plan.launches)
        self.samples["launch"], self.figures["launch"] = len(samples), samples
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
        return self._figure("graph_kernel", graph.replay, self.plan.budget_s * SHARES["launch"] / 2) / self.plan.launches

    def link(self) -> tuple[float, float]:
        """Bytes/s from pinned host memory to the device, and back."""
        host = torch.ones(self.plan.link_bytes // 4, pin_memory=True)
        device = torch.ones_like(host, device=self.device)
        share = self.plan.budget_s * SHARES["link"] / 2
        incoming = self._figure("host_to_device", lambda: device.copy_(host, non_blocking=True), share)
        outgoing = self._figure("device_to_host", lambda: host.copy_(device, non_blocking=True), share)
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
        share = self.plan.budget_s * SHARES["peer"] / 2
        seconds = self._figure("peer", lambda: there.copy_(here, non_blocking=True), share)
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

        found = self._figure("peer_sum", all_of_them, share_s) / self.plan.launches
        for device in pair:
            torch.cuda.synchronize(device)
        return found

    def _figure(self, name: str, run: Callable[[], Any], share_s: float) -> float:
        """What is a figure by itself."""
        seconds = self._seconds(name, run, share_s)
        self.figures[name] = self._taken[name]
        return seconds

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
        self.samples[name], self._taken[name] = len(samples), samples
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


def _own_product(library: CpuLibrary, rows: int, edge: int, dtype: Dtype) -> Callable[[], Any]:
    """Some rows times a square matrix, by the kernels that run models on CPUs."""
    generator = torch.Generator().manual_seed(edge)
    x, weight = (torch.randn(count, edge, generator=generator).to(_TORCH_DTYPES[dtype]) for count in (rows, edge))
    return partial(product, library, x, weight, torch.empty_like(x))
