"""The memory of this machine that is free now."""

from __future__ import annotations

import os
from pathlib import Path


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
