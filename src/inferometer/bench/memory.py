"""Memory of a case: its peak on the device, attributed to the backend whose runs it spans, and the host's limit on it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from inferometer.bench.backend import PageUse
from inferometer.bench.environment import telemetry
from inferometer.bench.record import PeakMemory
from inferometer.hardware.host_memory import free_host_bytes

# Of the memory that is free when a sweep starts; the rest is for what is not ours.
_HOST_SHARE = 0.95


def release_caches(device: torch.device) -> None:
    """Drops what nobody refers to any more and hands the allocator's cached blocks back, so that a failed run leaves no trace."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def bounded_host(device: torch.device) -> Iterator[None]:
    """While it lasts, this process cannot take more memory than the machine has free: a run on the CPU that asks for more fails.

    Without that the system grants it, and kills the process with all its results once it is written to. For a GPU's runs, and where
    the system has no such limit, nothing changes.
    """
    held = data_bytes() if device.type == "cpu" else None
    if held is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = held + int(_HOST_SHARE * free_host_bytes())
    stricter = min([limit, *(given for given in (soft, hard) if given != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_DATA, (stricter, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def data_bytes() -> int | None:
    """What the limit on data counts now; None where there is no Linux to say it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)


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
        idle = 0 if pages is None else (pages.pages - pages.peak) * pages.page_bytes
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
