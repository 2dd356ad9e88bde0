"""What else decides a host's speed: how its clocks are governed, and how busy it is."""

from __future__ import annotations

from pathlib import Path

from inferometer.hardware.host import system_text
from inferometer.hardware.reading import Reading

ROOT = Path("/")


def read_governor(root: Path = ROOT) -> str | None:
    """What sets the clocks of the processors, as Linux names it; several names where they differ, None where nothing says so."""
    folders = sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy[0-9]*"))
    names = (system_text(folder / "scaling_governor").strip() for folder in folders)
    return ", ".join(dict.fromkeys(name for name in names if name)) or None


def read_load(root: Path = ROOT) -> Reading[float]:
    """How many threads ran or waited to run in the last minute, on average, this process's own among them."""
    path = root / "proc/loadavg"
    first = system_text(path).partition(" ")[0]
    try:
        return Reading(float(first), "threads")
    except ValueError:
        return Reading(None, "threads", f"{path} does not say")
