"""What a step is expected to cost: its ops' times, the host's, and what a device draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from inferometer.estimate.gemm import overlapped
from inferometer.model.ops import Op

# Prompts of less took up to twice as long in single runs beside an H200. Longer ones are within a tenth of what is expected, forwards with
# their loss within a quarter (results/; own-studies-prompts in benchmarks/VALIDATION.md).
_SHORT_MS = 25.0
Binds = Literal["tensor", "vector", "memory", "launch", "link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """One op's part of a step, all its `count` times together; seconds of each unit at full clock, of which the longest decides.

    fixed_s: kernels starting and ending. busy_s: the tensor units at their datasheet's rate. bytes: to and from memory, as expected.
    launches: kernels that the host starts.
    """

    op: Op
    tensor_s: float
    vector_s: float
    memory_s: float
    link_s: float
    fixed_s: float
    busy_s: float
    bytes: float
    launches: int

    def seconds(self, clock: float) -> float:
        """The op's time with the units at `clock` of their boost clock."""
        return overlapped(max(self.tensor_s, self.vector_s) / clock, self.memory_s) + self.link_s + self.fixed_s

    @property
    def binds(self) -> Binds:
        """What takes the most of it."""
        parts: dict[Binds, float] = {
            "tensor": self.tensor_s,
            "vector": self.vector_s,
            "memory": self.memory_s,
            "link": self.link_s,
            "launch": self.fixed_s,
        }
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Expected milliseconds of a step, and what one device draws in it.

    kinds: time on the device by kind of op. compute_ms, memory_ms: how the device's time divides by what limits it.
    host_ms: what the host does for it. ms: the step, which lasts as long as the slower of device and host.
    watts: the mean, None for a device without a stated limit. others_watts: of the devices that wait while this one works, where they
    take turns; None where all work. clock: the share of the boost clock that the power limit leaves. stream_ms: what the host link needs
    for what is offloaded, beside all of it.
    """

    ms: float
    kinds: Mapping[str, float]
    compute_ms: float
    memory_ms: float
    host_ms: float
    watts: float | None
    clock: float
    ops: tuple[OpTime, ...]
    others_watts: float | None = None
    stream_ms: float = 0.0

    @property
    def exposed(self) -> bool:
        """Whether the host, or what comes between, has a say: the host takes half as long as the device or longer, or the step is short."""
        return self._exposure > 1

    @property
    def exposed_share(self) -> float:
        """How far it is so: 1 where it is, 0 for a step that is twice as far from it, and between them what the logarithm says."""
        return min(1.0, max(0.0, 1 + math.log2(self._exposure))) if self._exposure else 0.0

    @property
    def _exposure(self) -> float:
        device = sum(self.kinds.values())
        return max(2 * self.host_ms / device if device else math.inf, _SHORT_MS / self.ms if self.ms else math.inf)

    def joules(self, devices: int) -> float | None:
        """Of the step on so many devices."""
        if self.watts is None:
            return None
        others = self.watts if self.others_watts is None else self.others_watts
        return (self.watts + (devices - 1) * others) * self.ms / 1e3


def mean_cost(costs: list[Cost]) -> Cost:
    """The mean over the steps of a run, such as the decode steps of a growing context. Its ops are the first step's."""
    count = len(costs)
    return replace(
        costs[0],
        ms=sum(c.ms for c in costs) / count,
        kinds={kind: sum(c.kinds[kind] for c in costs) / count for kind in costs[0].kinds},
        compute_ms=sum(c.compute_ms for c in costs) / count,
        memory_ms=sum(c.memory_ms for c in costs) / count,
        host_ms=sum(c.host_ms for c in costs) / count,
        stream_ms=sum(c.stream_ms for c in costs) / count,
        watts=None if costs[0].watts is None else sum((c.watts or 0.0) * c.ms for c in costs) / sum(c.ms for c in costs),
    )
