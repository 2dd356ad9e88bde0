"""The bound: the least time in which a device can do a step's work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from inferometer.estimate.limits import Limits, LimitsBasis
from inferometer.model.ops import Op

Resource = Literal["memory", "compute", "link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least time of a step and what it consists of.

    ms: the sum over ops of max(FLOPs / rate, compulsory bytes / bandwidth), and of collective bytes / link bandwidth.
    shares: which part of it each resource takes, an op's whole time counting for what binds it. kinds: milliseconds by kind of op.
    compute_ms, memory_ms: what all FLOPs, and all compulsory bytes, would take alone; over a measured time they are the utilisation.
    link_ms: the same of what comes over a link. stream_ms: what the host link takes at least for what is offloaded, both ways.
    """

    ms: float
    compute_ms: float
    memory_ms: float
    link_ms: float
    shares: Mapping[Resource, float]
    kinds: Mapping[str, float]
    basis: LimitsBasis
    stream_ms: float = 0.0

    @property
    def binds(self) -> Resource:
        """What takes the most time."""
        return max(self.shares, key=lambda resource: self.shares[resource])


def bound(ops: Iterable[Op], limits: Limits) -> Bound:
    """Prices the ops of a step (attention counted half, see model.work) at the device's limits."""
    spent: dict[Resource, float] = {"memory": 0.0, "compute": 0.0, "link": 0.0}
    kinds: dict[str, float] = {}
    compute = memory = 0.0
    for op in ops:
        resource, seconds = op_bound(op, limits)
        compute += op.count * _compute_s(op, limits)
        memory += op.count * op.bytes_moved / limits.memory_bytes_s
        spent[resource] += op.count * seconds
        kinds[op.kind] = kinds.get(op.kind, 0.0) + op.count * seconds * 1e3
    total = sum(spent.values())
    shares = {resource: (seconds / total if total else 0.0) for resource, seconds in spent.items()}
    return Bound(
        ms=total * 1e3,
        compute_ms=compute * 1e3,
        memory_ms=memory * 1e3,
        link_ms=spent["link"] * 1e3,
        shares=shares,
        kinds=kinds,
        basis=limits.basis,
    )


def op_bound(op: Op, limits: Limits) -> tuple[Resource, float]:
    """What binds one op, and its least time in seconds. Raises ValueError for a collective where no link is known."""
    if op.collective_bytes:
        if limits.link is None:
            raise ValueError(f"{op.name} needs a link between the shards")
        return "link", op.collective_bytes / (limits.link.copy_bytes_s or limits.link.bandwidth_bytes_s)
    compute, memory = _compute_s(op, limits), op.bytes_moved / limits.memory_bytes_s
    return ("compute", compute) if compute > memory else ("memory", memory)


def _compute_s(op: Op, limits: Limits) -> float:
    return op.flops / (limits.matmul_flop_s(op.dtype) if op.unit == "tensor" else limits.vector_flop_s(op.dtype))


def mean_bound(bounds: tuple[Bound, ...]) -> Bound:
    """The mean over the steps of a run, such as the decode steps of a growing context."""
    count = len(bounds)
    total = sum(each.ms for each in bounds)
    shares = {name: sum(b.shares[name] * b.ms for b in bounds) / total if total else 0.0 for name in bounds[0].shares}
    kinds = {kind: sum(b.kinds[kind] for b in bounds) / count for kind in bounds[0].kinds}
    return Bound(
        ms=total / count,
        compute_ms=sum(b.compute_ms for b in bounds) / count,
        memory_ms=sum(b.memory_ms for b in bounds) / count,
        link_ms=sum(b.link_ms for b in bounds) / count,
        shares=shares,
        kinds=kinds,
        basis=bounds[0].basis,
        stream_ms=sum(b.stream_ms for b in bounds) / count,
    )
