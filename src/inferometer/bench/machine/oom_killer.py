"""How often the system has killed for want of memory, by the counters that it keeps of that."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))


def kills() -> int:
    """The count since the start of the control group and of the machine; 0 where there is none. It only tells that it grew."""
    total = 0
    for path in _COUNTERS:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total
