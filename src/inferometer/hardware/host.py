"""The processor and memory of this machine, from /proc and /sys; a tree elsewhere can stand in for them."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

# The instruction sets that decide how fast a CPU multiplies matrices, narrowest first.
_VECTOR_FLAGS = (
    "avx",
    "fma",
    "f16c",
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_fp16",
    "amx_int8",
)
_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "0x41": "Arm", "0x4e": "NVIDIA", "0xc0": "Ampere"}
_ARM_VECTOR_FLAGS = ("asimd", "fphp", "asimdhp", "asimddp", "sve", "sve2", "bf16", "i8mm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine's CPU: model as the kernel prints it, logical CPUs that this process may use, and bytes of memory and last cache.

    `cores` is limited by the process's affinity and by its control group's quota; `memory_bytes` by the control group.
    """

    model: str
    vendor: str
    cores: int
    flags: tuple[str, ...]
    memory_bytes: int | None
    cache_bytes: int | None

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether the CPU has bfloat16 products in hardware."""
        return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(self.flags)

    @property
    def multiplies_float16(self) -> bool:
        """Whether the CPU has float16 products that torch uses. avx512_fp16 alone does not count: no faster there than float32."""
        return "amx_fp16" in self.flags


def read_host(root: Path = Path("/"), affinity: int | None = None) -> Host:
    """This machine's, or that of the tree under `root`. `affinity` is the number of CPUs allowed; None asks the kernel. Never raises."""
    cpuinfo = system_text(root / "proc/cpuinfo")
    fields = _first_processor(cpuinfo)
    model = fields.get("model name") or fields.get("Processor") or platform.processor() or platform.machine() or "unknown CPU"
    present = set(fields.get("flags", fields.get("Features", "")).split())
    listed = sum(line.startswith("processor") for line in cpuinfo.splitlines())
    allowed = affinity if affinity is not None else _affinity() or listed or os.cpu_count() or 1
    quota = _quota(root / "sys/fs/cgroup")
    cores = allowed if quota is None else max(1, min(allowed, quota))
    return Host(
        model=" ".join(model.split()),
        vendor=_VENDORS.get(fields.get("vendor_id", fields.get("CPU implementer", "")), "unknown"),
        cores=cores,
        flags=tuple(flag for flag in (*_VECTOR_FLAGS, *_ARM_VECTOR_FLAGS) if flag in present),
        memory_bytes=_memory(root),
        cache_bytes=_last_cache(root / "sys/devices/system/cpu/cpu0/cache"),
    )


def _first_processor(cpuinfo: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _memory(root: Path) -> int | None:
    total = None
    for line in system_text(root / "proc/meminfo").splitlines():
        parts = line.split()
        if len(parts) >= 2 and parts[0] == "MemTotal:" and parts[1].isdigit():
            total = int(parts[1]) * 1024
    if total is None and root == Path("/"):
        total = _physical_memory()
    limits = [_number(root / "sys/fs/cgroup/memory.max"), _number(root / "sys/fs/cgroup/memory/memory.limit_in_bytes")]
    return min((limit for limit in (total, *limits) if limit is not None), default=None)


def _quota(cgroup: Path) -> int | None:
    """CPUs that the control group's time quota amounts to, rounded to whole ones; None without a quota."""
    parts = system_text(cgroup / "cpu.max").split()
    if len(parts) == 2 and parts[0].isdigit() and parts[1].isdigit() and int(parts[1]) > 0:
        return max(1, round(int(parts[0]) / int(parts[1])))
    quota, period = _number(cgroup / "cpu/cpu.cfs_quota_us"), _number(cgroup / "cpu/cpu.cfs_period_us")
    if quota is not None and period is not None and period > 0:
        return max(1, round(quota / period))
    return None


def _last_cache(folder: Path) -> int | None:
    """Bytes of the highest level of cache that one CPU sees."""
    best = (0, 0)
    try:
        indices = sorted(folder.glob("index[0-9]*"))
    except OSError:
        return None
    for index in indices:
        size = system_text(index / "size").strip()
        level = _number(index / "level") or 0
        if size.endswith("K") and size[:-1].isdigit():
            best = max(best, (level, int(size[:-1]) * 1024))
    return best[1] or None


def _physical_memory() -> int | None:
    """For systems without /proc."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _affinity() -> int | None:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return None


def _number(path: Path) -> int | None:
    text = system_text(path).strip()
    return int(text) if text.isdigit() else None


def system_text(path: Path) -> str:
    """What a file of the system's says; nothing where it cannot be read."""
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
