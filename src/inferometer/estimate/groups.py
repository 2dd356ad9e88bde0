"""What a run of groups costs in the orders that serve large batches: zigzag, diagonal and row, with weights resident or streamed."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from inferometer.estimate.beside_link import prompt_tokens
from inferometer.estimate.cost import Cost
from inferometer.estimate.deployment import Deployment
from inferometer.estimate.host_stream import HostStream
from inferometer.estimate.run import Total
from inferometer.model.step import Share, Step, decode_equal, prefill

Order = Literal["zigzag", "diagonal", "row"]


@dataclass(frozen=True, slots=True)
class Sweep:
    """`count` passes through the layers, each with so many groups that bring their prompts and groups that decode one token."""

    count: int
    entering: int
    decoding: int


def sweeps(order: Order, groups: int, generated: int, most: int | None = None, together: int = 1) -> tuple[Sweep, ...]:
    """The passes of a run.

    zigzag: all groups of a block, of `most`, enter together, then decode together; blocks follow each other. diagonal: a group enters a
    sweep and leaves `generated` sweeps later; at most `most` are in flight, and `together` enter at once where prompts run beside weights
    that come. row: one group after another, each alone.
    """
    if order == "zigzag":
        block = groups if most is None else min(groups, most)
        blocks, rest = divmod(groups, block)
        found = [Sweep(blocks, block, 0), Sweep(blocks * (generated - 1), 0, block)]
        found += [Sweep(1, rest, 0), Sweep(generated - 1, 0, rest)] if rest else []
    elif order == "row":
        found = [Sweep(groups, 1, 0), Sweep(groups * (generated - 1), 0, 1)]
    else:
        found = _diagonal(groups, generated, groups if most is None else most, together)
    return tuple(each for each in found if each.count)


def _diagonal(groups: int, generated: int, most: int, together: int) -> list[Sweep]:
    found: list[Sweep] = []
    inside: deque[int] = deque()  # groups that entered in each of the sweeps before, the oldest first
    left, decoding = groups, 0
    while left or decoding:
        entering = min(left, together, max(0, most - decoding))
        left -= entering
        if found and (found[-1].entering, found[-1].decoding) == (entering, decoding):
            found[-1] = Sweep(found[-1].count + 1, entering, decoding)
        else:
            found.append(Sweep(1, entering, decoding))
        inside.append(entering)
        decoding += entering
        if len(inside) == generated:
            decoding -= inside.popleft()
    return found


@dataclass(frozen=True, kw_only=True)
class GroupRun:
    """Groups of `size` sequences, each of `length` prompt tokens and `generated` new ones.

    most: groups in flight, None for all. stream: what comes over the host link in every sweep; None is resident. sweep_tokens: prompt
    tokens of a pass.
    """

    deployment: Deployment
    order: Order
    groups: int
    size: int
    length: int
    generated: int
    most: int | None = None
    stream: HostStream | None = None
    sweep_tokens: int | None = None

    def total(self) -> Total:
        """The whole run. What comes does so while a sweep runs, so that the slower of the two decides."""
        seconds, joules = self.deployment.stack.request_s, 0.0
        known = True
        for sweep in sweeps(self.order, self.groups, self.generated, self.most, self._together_at_once):
            taken, drawn = self._sweep(sweep)
            seconds += sweep.count * max(taken, self._coming(sweep))
            known = known and drawn is not None
            joules += sweep.count * (drawn or 0.0)
        return Total(seconds, joules if known else None, self.groups * self.size * self.generated)

    @property
    def _together_at_once(self) -> int:
        """Groups whose prompts run beside a sweep's weights."""
        if self.stream is None or not self.stream.weight_bytes:
            return 1
        beside = prompt_tokens(self.deployment, self.stream.weight_bytes, self.stream.bytes_s)
        return max(1, beside // (self.size * self.length))

    def _coming(self, sweep: Sweep) -> float:
        """Seconds that the link needs."""
        if self.stream is None:
            return 0.0
        entering, decoding = sweep.entering * self.size, sweep.decoding * self.size
        shares = [Share(self.length, 0, entering)] if entering else []
        shares += [Share(1, self._context, decoding)] if decoding else []
        passes = 1 if decoding or self.sweep_tokens is None else max(1, -(-entering * self.length // self.sweep_tokens))
        return self.stream.ms(Step(shares=tuple(shares)), passes) / 1e3 if shares else 0.0

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
        if sweep.entering > 1:  # what the prompts of one more group add
            (one, j_one), (rest, j_rest) = self._together(Sweep(1, 1, 0)), self._together(Sweep(1, min(1, sweep.decoding), sweep.decoding))
            more = sweep.entering - min(1, sweep.decoding)
            return rest + more * one, None if j_one is None or j_rest is None else j_rest + more * j_one
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
        most = min(self.groups, self.most or self.groups)
        if self.order == "diagonal":
            most = min(most, self.generated * self._together_at_once)
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
