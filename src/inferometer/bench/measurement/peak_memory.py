"""Peak memory of a case on the device, attributed to the backend whose runs it spans."""

from __future__ import annotations

import torch

from inferometer.bench.backends.backend import PageUse
from inferometer.bench.machine.environment import telemetry
from inferometer.bench.records.record import PeakMemory


class PeakMeter:
    """Follows one backend's peak over the runs of a case.

    `alone` says that no other backend has weights on the device. If one has, its tensors are taken off the tensors' peak, but what
    the allocator reserved and what the device had in use cannot be attributed and stay unknown. So does everything on the CPU, where
    the process's resident size also holds the interpreter, the libraries and the checkpoint's mapped pages.
    """

    def __init__(self, device: torch.device, *, alone: bool) -> None:
        self._device = device
        self._alone = alone
        self._telemetry = telemetry(device)
        self._foreign = 0
        self._peak = PeakMemory()

    def start(self, resident_bytes: int) -> None:
        """Before a run: forgets earlier peaks. `resident_bytes` is what the backend itself keeps on the device between runs."""
        if self._device.type != "cuda":
            return
        torch.cuda.reset_peak_memory_stats(self._device)
        self._foreign = 0 if self._alone else max(int(torch.cuda.memory_allocated(self._device)) - resident_bytes, 0)

    def stop(self, pages: PageUse | None = None) -> None:
        """After a run: takes its peak in. Of the pool behind `pages` only those count that were in use."""
        if self._device.type != "cuda":
            return
        idle = 0 if pages is None else pages.idle_bytes
        allocated = int(torch.cuda.max_memory_allocated(self._device)) - self._foreign - idle
        reserved = in_use = None
        if self._alone:
            reserved = max(int(torch.cuda.max_memory_reserved(self._device)), self._peak.reserved or 0)
            free, total = torch.cuda.mem_get_info(self._device)
            own = self._telemetry.read().value("gpu_process_memory_bytes")
            # The allocator gives nothing back within a case, so what is in use after a run is also the most that was.
            in_use = max(total - free if own is None else own, self._peak.device or 0)
        self._peak = PeakMemory(allocated=max(allocated, self._peak.allocated or 0), reserved=reserved, device=in_use)

    @property
    def peak(self) -> PeakMemory:
        """The largest of the runs."""
        return self._peak
