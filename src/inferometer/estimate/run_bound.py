"""The bound of a run: the least time from its first prompt token to its last generated one."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.estimate.bound import Bound, Resource


@dataclass(frozen=True, slots=True)
class RunBound:
    """ms: the least time. binds: what it mostly is."""

    ms: float
    binds: Resource

    def times(self, count: float) -> RunBound:
        """That of so many such runs after each other."""
        return RunBound(count * self.ms, self.binds)


def one_after_another(prefill: Bound, decode: Bound | None, steps: int) -> RunBound:
    """Of a prefill and then `steps` decode steps, whose mean bound `decode` is; None without any: the sum of theirs."""
    parts = [(prefill, 1), *([] if decode is None else [(decode, steps)])]
    spent = {name: sum(count * each.shares[name] * each.ms for each, count in parts) for name in prefill.shares}
    return RunBound(sum(count * each.ms for each, count in parts), max(spent, key=spent.__getitem__))


def in_any_order(prefill: Bound, decode: Bound | None, steps: int) -> RunBound:
    """Of a run whose prompts and decode steps may share sweeps: all FLOPs, or all bytes if every step reads the weights once.

    No order of sweeps needs less of the device, its memory or a link.
    """
    parts = [(prefill, 1), *([] if decode is None else [(decode, steps)])]
    alone: dict[Resource, float] = {
        "memory": sum(count * each.memory_ms for each, count in parts),
        "compute": sum(count * each.compute_ms for each, count in parts),
        "link": sum(count * each.link_ms for each, count in parts),
    }
    binds = max(alone, key=alone.__getitem__)
    return RunBound(alone[binds], binds)
