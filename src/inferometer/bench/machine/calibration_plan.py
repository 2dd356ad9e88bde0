"""How much a calibration measures."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inferometer.hardware.host import Host

_MIB = 1 << 20


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
