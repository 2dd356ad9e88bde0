"""Memory that a case may take and leaves: the host's limit on it, and what is given back after a failed run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

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
