"""The time that a stack is expected to take for a step: every op at the rate it reaches, and the host that launches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from inferometer.estimate.appended import Appended
from inferometer.estimate.attention import Attention
from inferometer.estimate.collective import all_reduce_s, gather_s, measured_sum_s, normed_sum_s, peer_sum_s, reaches, transfer_s
from inferometer.estimate.cost import Cost, OpTime
from inferometer.estimate.host import Host, decodes
from inferometer.estimate.machine import Machine
from inferometer.estimate.power import Power
from inferometer.estimate.products import Products
from inferometer.estimate.stack import Stack, loss_item_bytes
from inferometer.model.formats import Formats
from inferometer.model.ops import Op
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step

# A loss over matrices reads and writes: widened logits, maximum and sum, log-probabilities, the gather's reads. Passes over a logit.
_LOSS_PASSES = 5
# Halvings in search of the clock that a power limit leaves.
_CLOCK_STEPS = 16
_LOWEST_CLOCK = 0.2
# Measured rates are those of bursts, in which a card draws more than its limit, for about so long. Then the clock falls to where it holds
# the limit, with so much of the tensor units' power as power.py has it: prompts of 15 to 100 ms took H200s what their products take alone,
# those of 0.2 to 1.5 s of models of 7e9 weights 5 to 9 % longer (results/, benchmarks/results/own-h200.jsonl; 75 of them 3.4 -> 2.9 % off).
_BURST_S = 0.1
_BURST_POWER = 0.9
# What ranks tell each other of a row whose likeliest token is wanted: its score, the token and the sum that makes it a probability.
_PEAK_BYTES = 12
# What the host launches for a sum over devices that write into each other's memory, in a step with prompts.
_SUM_LAUNCHES = 1
# Norms of the residual stream, behind sums over devices.
_SUMMED = ("attention_norm", "feed_forward_norm", "final_norm")


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """Prices steps of one model for one stack on one machine.

    power: None prices without a limit. sorts: tokens are drawn by top-p. turns: the devices work one after another.
    """

    spec: ModelSpec
    stack: Stack
    machine: Machine
    formats: Formats
    power: Power | None
    devices: int = 1
    sorts: bool = False
    turns: bool = False

    @cached_property
    def _bytes_s(self) -> float:
        return self.machine.memory_bytes_s * self.stack.memory_share

    @cached_property
    def _attention(self) -> Attention:
        return Attention(spec=self.spec, stack=self.stack, machine=self.machine, formats=self.formats)

    @cached_property
    def _appended(self) -> Appended:
        return Appended(spec=self.spec, stack=self.stack, machine=self.machine, formats=self.formats)

    @cached_property
    def _products(self) -> Products:
        return Products(stack=self.stack, machine=self.machine, formats=self.formats)

    @cached_property
    def _host(self) -> Host:
        return Host(spec=self.spec, stack=self.stack, machine=self.machine, formats=self.formats, devices=self.devices)

    def cost(self, ops: tuple[Op, ...], step: Step) -> Cost:
        """The expected time of a step with these ops (attention counted half, see model.work)."""
        times = (*chain.from_iterable(self._op_times(op, step) for op in ops), *self._sampler(ops, step))
        host = self._host.spends(sum(each.launches for each in times), ops, step)

        def total(clock: float) -> float:
            device = sum(each.seconds(clock) for each in times)
            return host.with_device_s(device) if self.stack.counts_host else device

        clock, watts = self._clock(times, total)
        kinds: dict[str, float] = {}
        compute = memory = 0.0
        for each in times:
            seconds = each.seconds(clock)
            kinds[each.op.kind] = kinds.get(each.op.kind, 0.0) + seconds * 1e3
            computes = each.binds in ("tensor", "vector")
            compute, memory = compute + seconds * computes, memory + seconds * (not computes)
        return Cost(
            ms=total(clock) * 1e3,
            kinds=kinds,
            compute_ms=compute * 1e3,
            memory_ms=memory * 1e3,
            host_ms=host.seconds * 1e3,
            watts=watts,
            clock=clock,
            ops=times,
            others_watts=self.power.static_w if self.turns and self.power is not None else None,
        )

    def _op_times(self, op: Op, step: Step) -> Iterator[OpTime]:
        """Of an op, of what is done to its weight before it, and of a cache that is copied as it grows."""
        widening = self._products.widening(op) if op.unit == "tensor" and op.kind != "attention" else None
        if widening is not None:
            yield widening
        copied = self._appended.copy(op, step) if op.kind == "kv_write" else None
        if copied is not None:
            yield copied
        yield self.op_time(op, step)

    def op_time(self, op: Op, step: Step) -> OpTime:
        """One op of the step."""
        tensor = vector = memory = link = extra = moved = 0.0
        launches = self._launches(op, step)
        if op.kind == "collective":
            link = self._collective_s(op, step) / self.stack.link_share
        elif op.kind == "attention":
            tensor, vector, moved, launches = self._attention.op(op, step)
            memory = moved / self._bytes_s
        elif op.unit == "tensor":
            tensor, memory, extra = self._products.op(op)
            moved = op.bytes_moved + op.activation_bytes
        else:
            moved = op.bytes_moved + op.activation_bytes * self._passes(op)
            passing = moved - op.bytes_moved
            memory = op.bytes_moved / self._bytes_s + self.machine.passing_s(passing) / self.stack.memory_share
            vector = op.flops / self.machine.vector_flop_s("float32") if moved else 0.0
        count = op.count
        fixed = launches * self._kernel_s(step)
        return OpTime(
            op=op,
            tensor_s=count * tensor,
            vector_s=count * vector,
            memory_s=count * memory,
            link_s=count * link,
            fixed_s=count * (fixed + extra),
            busy_s=count * op.flops / self.machine.limits.matmul_flop_s(op.dtype) if op.unit == "tensor" else 0.0,
            bytes=count * moved,
            launches=count * launches,
        )

    def _sampler(self, ops: tuple[Op, ...], step: Step) -> tuple[OpTime, ...]:
        """What is done with the logits: a token chosen from each last row, log-probabilities of all rows where the stack makes them.

        Every device does it, over the whole vocabulary, unless devices choose among what is best of their own parts.
        """
        if step.logits == "none" or step.loss or not any(op.kind == "logits" for op in ops) or not step.cached:
            return ()
        each = self.stack.sorting_bytes if self.sorts else self.stack.sampler_bytes
        widths = self.stack.log_probability_passes * 2 * self.formats.item_bytes * step.logit_rows + each * step.sequences
        moved = widths * self.spec.vocabulary / (self.devices if self._peers and not self.sorts else 1)
        op = Op(kind="logits", name="sampler", shape=(step.sequences, self.spec.vocabulary), unit="vector", dtype="float32")
        seconds = moved / self._bytes_s
        fixed = 4 * self._kernel_s(step)
        return (
            OpTime(op=op, tensor_s=0.0, vector_s=0.0, memory_s=seconds, link_s=0.0, fixed_s=fixed, busy_s=0.0, bytes=moved, launches=4),
        )

    def _kernel_s(self, step: Step) -> float:
        """What a kernel takes besides."""
        if not self.machine.asynchronous:
            return 0.0
        return self.stack.kernel_s * (self.stack.lone_share if step.tokens == 1 else 1.0)

    def _clock(self, times: tuple[OpTime, ...], total: Callable[[float], float]) -> tuple[float, float | None]:
        """(the mean clock, the mean watts) of a step."""
        if self.power is None:
            return 1.0, None
        busy, moved = sum(each.busy_s for each in times), sum(each.bytes for each in times)
        sent = sum(self._sent(each.op) * each.op.count for each in times)
        measured, limit = self.machine.limits.basis == "calibrated", self.power.limit_w

        def watts(clock: float, share: float = 1.0) -> float:
            assert self.power is not None
            return self.power.watts(total(clock), tensor_s=busy * share, memory_bytes=moved, link_bytes=sent, clock=clock)

        full = watts(1.0)
        if full <= limit:
            return 1.0, full
        if not measured:
            held = _highest(lambda clock: watts(clock) <= limit)
            return held, min(limit, watts(held))
        at_once = total(1.0)
        if at_once <= _BURST_S:
            return 1.0, limit
        held = _highest(lambda clock: watts(clock, _BURST_POWER) <= limit)
        takes = _BURST_S + (1 - _BURST_S / at_once) * total(held)
        return _highest(lambda clock: total(clock) >= takes), limit

    def _collective_s(self, op: Op, step: Step) -> float:
        link = self.machine.limits.link
        assert link is not None, "collectives exist between devices alone, and devices have a link"
        if op.name.endswith("all_reduce"):
            payload = op.shape[0] * op.shape[1] * self.formats.item_bytes
            if self._peers:
                # Read and written: the sum and the residual, the new residual and what is normed.
                return normed_sum_s(payload, self.devices, link, norm_s=4 * payload / self._bytes_s)
            measured = measured_sum_s(payload, self.devices, link) if self.stack.peer_sums else None
            if measured is not None:
                return measured
            return all_reduce_s(payload, self.devices, link, one_shot=self.stack.one_shot)
        if op.name.endswith("transfer"):
            return transfer_s(op.collective_bytes, link)
        if self._peers and (step.loss or step.logits != "all"):
            row = op.shape[1] * self.formats.item_bytes / self.devices if self.sorts else _PEAK_BYTES
            return peer_sum_s(op.shape[0] * row, self.devices, link)
        if not self.machine.asynchronous:
            # Through the host a sum of few numbers is what all have sent to all, as a gather is.
            measured = measured_sum_s(self._sent(op) / (self.devices - 1), self.devices, link)
            assert measured is not None, "ranks on a CPU have a link where sums over it were measured"
            return measured
        return gather_s(self._sent(op), self.devices, link)

    def _sent(self, op: Op) -> int:
        """Bytes that a device sends: of logits its whole part, which all stacks gather but those whose devices tell each other less."""
        if not op.name.endswith("all_gather"):
            return op.collective_bytes
        rows, width = op.shape
        return (self.devices - 1) * rows * -(-width // self.devices) * self.formats.item_bytes

    @property
    def _peers(self) -> bool:
        """Whether devices write into each other's memory."""
        link = self.machine.limits.link
        return self.stack.peer_sums and self.devices > 1 and link is not None and reaches(link)

    def _launches(self, op: Op, step: Step) -> int:
        if op.kind == "norm" and (step.tokens <= self.stack.normed_rows or self._peers):
            return 0
        if op.kind == "collective" and self._peers:
            return 0 if self._host.records(step) else _SUM_LAUNCHES  # where steps are recorded, the time of a sum holds its launch
        if op.kind == "rotary" and self.stack.fused_rotation and decodes(step):
            return 0
        if op.kind == "activation" and self.stack.writes_activated(self.spec):
            return 0
        if op.kind == "norm" and self.spec.norm == "rms":
            return self.stack.rms_kernels
        if op.kind == "activation" and self.spec.gated:
            return self.stack.gated_kernels
        if op.kind == "activation" and self.stack.spells_out(self.spec):
            return self.stack.tanh_kernels[self.spec.family]
        return self.stack.kernels.get(op.kind, 1)

    def _passes(self, op: Op) -> float:
        if op.kind == "loss":
            item = self.formats.item_bytes
            return _LOSS_PASSES * loss_item_bytes(self.stack, self.spec, item) / (2 * item)
        if op.kind == "norm" and op.name in _SUMMED and self._peers:
            return 0.0  # the time of a sum holds its norm
        if op.kind == "norm" and self.spec.norm == "rms":
            return self.stack.rms_passes
        if op.kind == "activation" and self.stack.writes_activated(self.spec):
            return 0.0
        if op.kind == "activation" and self.spec.gated:
            return self.stack.gated_passes
        if op.kind == "activation" and self.stack.spells_out(self.spec):
            return self.stack.tanh_passes[self.spec.family]
        return self.stack.passes.get(op.kind, 1.0)


def _highest(holds: Callable[[float], bool]) -> float:
    """The highest clock, as a share, of which something holds that holds of all lower ones."""
    low, high = _LOWEST_CLOCK, 1.0
    if holds(high):
        return high
    for _ in range(_CLOCK_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
