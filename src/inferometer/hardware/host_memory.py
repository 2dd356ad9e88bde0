"""The memory of this machine that is free now."""

from __future__ import annotations

import os
import time
from pathlib import Path

POLL_S = 0.05
"""Between two looks at what is free: nothing tells when that grows."""


def free_host_bytes() -> int:
    """MemAvailable, or what the control group still allows if that is less."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux: half of what is installed
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, max(int(limit) - used, 0))


def await_free_host_bytes(wanted: int, patience_s: float = 10.0) -> int:
    """What is free as soon as that is `wanted` bytes, or once it has not grown for so long.

    A virtual machine may show a part of what it can have, and be given more as that is taken.
    """
    free = free_host_bytes()
    deadline = time.monotonic() + patience_s
    while free < wanted and time.monotonic() < deadline:
        time.sleep(POLL_S)
        before, free = free, free_host_bytes()
        if free > before:
            deadline = time.monotonic() + patience_s
    return free
