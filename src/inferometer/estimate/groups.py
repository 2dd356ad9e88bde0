"""What a run of groups costs in the orders that serve large batches: zigzag, diagonal and row, with weights resident or streamed."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from inferometer.estimate.cost import Cost
from inferometer.estimate.deployment import Deployment
from inferometer.estimate.run import Total
from inferometer.model.step import Share, Step, decode_equal, prefill

Order = Literal["zigzag", "diagonal", "row"]

# Of a host link's wire rate, copies from pinned memory: 25 to 26 of 31.5 GB/s over PCIe 4, 52 to 55 of 63 over PCIe 5.
HOST_SHARE = 0.82


@dataclass(frozen=True, slots=True)
class Sweep:
    """`count` passes through the layers, each with so many groups that bring their prompts and groups that decode one token."""

    count: int
    entering: int
    decoding: int


def sweeps(order: Order, groups: int, generated: int) -> tuple[Sweep, ...]:
    """The passes of a run.

    zigzag: all groups of a block enter together, then decode together. diagonal: one group enters a sweep and leaves `generated` sweeps
    later. row: one group after another, each alone.
    """
    if order == "zigzag":
        found = [Sweep(1, groups, 0), Sweep(generated - 1, 0, groups)]
    elif order == "row":
        found = [Sweep(groups, 1, 0), Sweep(groups * (generated - 1), 0, 1)]
    else:
        found = []
        for sweep in range(groups + generated - 1):
            decoding = min(sweep, groups) - max(0, sweep - generated + 1)
            found.append(Sweep(1, int(sweep < groups), max(0, decoding)))
    return tuple(each for each in found if each.count)


@dataclass(frozen=True, kw_only=True)
class GroupRun:
    """Groups of `size` sequences, each of `length` prompt tokens and `generated` new ones.

    streamed_bytes: weights that come over the host link in every sweep, host_bytes_s how fast. None is resident.
    """

    deployment: Deployment
    order: Order
    groups: int
    size: int
    length: int
    generated: int
    streamed_bytes: float = 0.0
    host_bytes_s: float | None = None

    def total(self) -> Total:
        """The whole run. Weights come in while a sweep runs, so that the slower of the two decides."""
        coming = self.streamed_bytes / self.host_bytes_s if self.host_bytes_s else 0.0
        seconds, joules = self.deployment.stack.request_s, 0.0
        known = True
        for sweep in sweeps(self.order, self.groups, self.generated):
            taken, drawn = self._sweep(sweep)
            seconds += sweep.count * max(taken, coming)
            known = known and drawn is not None
            joules += sweep.count * (drawn or 0.0)
        return Total(seconds, joules if known else None, self.groups * self.size * self.generated)

    def _sweep(self, sweep: Sweep) -> tuple[float, float | None]:
        """Seconds and joules of one."""
        deployment, stack = self.deployment, self.deployment.stack
        if not stack.groups_apart:
            return self._together(sweep)
        turns = (sweep.entering + sweep.decoding) if self.order == "zigzag" else 0
        seconds = stack.step_s + turns * deployment.spec.layers * stack.turn_s
        joules: float | None = 0.0
        for count, cost in ((sweep.entering, self._prompt), (sweep.decoding, self._token)):
            seconds += count * (cost.ms / 1e3 - stack.step_s)
            drawn = cost.joules(deployment.devices)
            joules = None if joules is None or drawn is None else joules + count * drawn
        return seconds, joules

    def _together(self, sweep: Sweep) -> tuple[float, float | None]:
        """One batch of all groups. Between few sizes, costs are interpolated: they are nearly straight there."""
        if sweep.entering > 1:  # a block's prompts fill sweeps of their own
            seconds, joules = self._together(Sweep(1, 1, 0))
            return sweep.entering * seconds, None if joules is None else sweep.entering * joules
        sizes = self._sizes
        place = bisect_left(sizes, sweep.decoding)
        high = self._mixed[sweep.entering, sizes[place]]
        if sizes[place] == sweep.decoding:
            return high
        low = self._mixed[sweep.entering, sizes[place - 1]]
        part = (sweep.decoding - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
        joules = None if low[1] is None or high[1] is None else low[1] + part * (high[1] - low[1])
        return low[0] + part * (high[0] - low[0]), joules

    @cached_property
    def _sizes(self) -> list[int]:
        most = min(self.groups, self.generated) if self.order == "diagonal" else self.groups
        return sorted({0, 1, most // 4, most // 2, most})

    @cached_property
    def _mixed(self) -> dict[tuple[int, int], tuple[float, float | None]]:
        found: dict[tuple[int, int], tuple[float, float | None]] = {}
        for entering in (0, 1):
            for decoding in self._sizes:
                shares = [Share(self.length, 0, self.size)] if entering else []
                if decoding:
                    shares.append(Share(1, self._context, decoding * self.size))
                if shares:
                    cost = self.deployment.cost(Step(shares=tuple(shares)))
                    found[entering, decoding] = cost.ms / 1e3, cost.joules(self.deployment.devices)
        found[0, 0] = 0.0, 0.0
        return found

    @property
    def _context(self) -> int:
        return max(1, self.length + (self.generated - 2) // 2)

    @cached_property
    def _prompt(self) -> Cost:
        return self.deployment.cost(prefill(self.size, self.length))

    @cached_property
    def _token(self) -> Cost:
        return self.deployment.cost(decode_equal(self.size, self._context))
