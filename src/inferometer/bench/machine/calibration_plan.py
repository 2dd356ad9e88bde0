"""How much a calibration measures."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inferometer.hardware.host import Host

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure: seconds in all, bytes of the buffers, edges of the square products (rising), operations a launch sample.

    ranks: by how many sums are measured, each number in processes of their own, whose start is not counted in the seconds.
    """

    budget_s: float = 10.0
    buffer_bytes: int
    link_bytes: int = 256 * _MIB
    edges: tuple[int, ...]
    launches: int = 500
    repeats: int = 20
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            raise ValueError(f"budget_s is positive, not {self.budget_s}")
        if min(self.buffer_bytes, self.link_bytes) < 4096:
            raise ValueError("buffers hold at least 4096 bytes")
        if not self.edges or any(edge < 16 or edge % 16 for edge in self.edges) or list(self.edges) != sorted(set(self.edges)):
            raise ValueError(f"edges rise and are multiples of 16, not {self.edges}")
        if min(self.launches, self.repeats) < 1:
            raise ValueError("launches and repeats are at least 1")
        if any(count < 2 for count in self.ranks):
            raise ValueError(f"ranks are 2 or more, not {self.ranks}")


# Less is asked for by those who will not wait for processes to start.
_RANKS_FROM_S = 10.0
_MOST_ON_CPU = 4


def default_plan(device: torch.device, host: Host, budget_s: float = 10.0) -> Plan:
    """Buffers far larger than the last cache, but no more than a small part of the memory; sums over 2, 4 ... GPUs and over all there are,
    on a CPU over 2 and 4 ranks, unless less than ten seconds are given."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size = max(64 * _MIB, min(1024 * _MIB, free // 8))
        gpus = torch.cuda.device_count() - (device.index or 0)
        return Plan(
            budget_s=budget_s,
            buffer_bytes=size,
            edges=(2048, 4096, 8192) if free > 4096 * _MIB else (1024, 2048),
            ranks=_counts(gpus, budget_s),
        )
    size = max(256 * _MIB, 2 * (host.cache_bytes or 0))
    if host.memory_bytes is not None:
        size = max(16 * _MIB, min(size, host.memory_bytes // 16))
    ranks = _counts(_MOST_ON_CPU, budget_s)
    return Plan(budget_s=budget_s, buffer_bytes=size, edges=(256, 512, 1024, 2048), launches=2000, ranks=ranks)


def _counts(most: int, budget_s: float) -> tuple[int, ...]:
    """Numbers of ranks: powers of two, and the most."""
    if most < 2 or budget_s < _RANKS_FROM_S:
        return ()
    return tuple(sorted({1 << power for power in range(1, most.bit_length())} | {most}))
