"""The time that a stack is expected to take for a step: every op at the rate it reaches, and the host that launches them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferometer.estimate.efficiency import Efficiency
from inferometer.estimate.limits import Limits
from inferometer.estimate.stack import Stack, loss_item_bytes
from inferometer.model.ops import Op
from inferometer.model.spec import Alibi, ModelSpec
from inferometer.model.step import Step

# The shortest a kernel takes on a GPU from one launch to the next, its tail and the next one's start included.
_SHORTEST_KERNEL_S = 2.5e-6
# What one collective costs whatever its size, where the link's own figure does not say: launch, synchronisation, two hops.
_COLLECTIVE_S = 20e-6
# NCCL's large all-reduces reach about four fifths of the link's wire rate.
_LINK_SHARE = 0.8
# A loss over matrices reads and writes: widened logits, maximum and sum, log-probabilities, the gather's reads. Bytes a logit.
_LOSS_PASSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Expected milliseconds of a step.

    kinds: time on the device by kind of op. compute_ms, memory_ms: how the device's time divides by what limits it.
    host_ms: what the host needs to launch it all. ms: the step, which lasts as long as the slower of device and host.
    """

    ms: float
    kinds: Mapping[str, float]
    compute_ms: float
    memory_ms: float
    host_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """Prices steps of one model for one stack on one device. `asynchronous`: the host runs ahead of the device, as with a GPU."""

    spec: ModelSpec
    stack: Stack
    limits: Limits
    efficiency: Efficiency
    asynchronous: bool

    def cost(self, ops: tuple[Op, ...], step: Step, item_bytes: int) -> Cost:
        """The expected time of a step with these ops (attention counted half, see model.work)."""
        kinds: dict[str, float] = {}
        compute = memory = host = 0.0
        scores = next((op.activation_bytes for op in ops if op.name == "softmax"), 0)
        for op in ops:
            launches = op.count * self._launches(op)
            host += launches * self._dispatch_s
            seconds, computes = self._device_seconds(op, step, scores, item_bytes)
            seconds = max(op.count * seconds, launches * _SHORTEST_KERNEL_S if self.asynchronous else 0.0)
            kinds[op.kind] = kinds.get(op.kind, 0.0) + seconds * 1e3
            compute, memory = compute + seconds * computes, memory + seconds * (not computes)
        device = sum(kinds.values()) / 1e3
        seam = self.stack.seam_s
        if seam is not None and self.asynchronous and all(share.queries == 1 for share in step.shares):
            return Cost(ms=(device + seam) * 1e3, kinds=kinds, compute_ms=compute * 1e3, memory_ms=memory * 1e3, host_ms=seam * 1e3)
        host += self.stack.step_s
        if not self.stack.counts_host:
            total = device
        elif self.asynchronous:
            total = max(device, host - self.stack.step_s) + self.stack.step_s
        else:
            total = device + host
        return Cost(ms=total * 1e3, kinds=kinds, compute_ms=compute * 1e3, memory_ms=memory * 1e3, host_ms=host * 1e3)

    @property
    def _dispatch_s(self) -> float:
        """A slow host, measured, is slow at the interpreter too; the launch itself is about half of a native dispatch."""
        return max(self.stack.dispatch_s, 2 * self.limits.launch_s) if self.limits.launch_s else self.stack.dispatch_s

    def _launches(self, op: Op) -> int:
        if op.kind == "attention" and op.name != "attention_scores" and self.stack.fuses_attention(self.spec):
            return 0
        if op.kind == "norm" and self.spec.norm == "rms":
            return self.stack.rms_kernels
        if op.kind == "activation" and self.spec.gated:
            return max(2, self.stack.kernels.get("activation", 1))
        return self.stack.kernels.get(op.kind, 1)

    def _device_seconds(self, op: Op, step: Step, scores: int, item_bytes: int) -> tuple[float, bool]:
        """Seconds of one op, and whether arithmetic sets them."""
        bandwidth = self.limits.memory_bytes_s * self.efficiency.memory
        if op.kind == "collective":
            link = self.limits.link
            assert link is not None, "collectives exist between shards alone, and shards have a link"
            return op.collective_bytes / (link.bandwidth_bytes_s * _LINK_SHARE) + (link.latency_s or 0.0) * 2 + _COLLECTIVE_S, False
        if op.kind == "attention":
            compute, traffic = self._attention(op, step, scores)
        elif op.unit == "tensor":
            compute = op.flops / (self.limits.matmul_flop_s(op.dtype) * self.efficiency.matmul_of(op.shape[-1]))
            traffic = op.bytes_moved + op.activation_bytes
        else:
            compute = op.flops / self.limits.vector_flop_s("float32")
            traffic = op.bytes_moved + op.activation_bytes * self._passes(op, item_bytes)
        memory = traffic / bandwidth
        return max(compute, memory), compute > memory

    def _passes(self, op: Op, item_bytes: int) -> float:
        if op.kind == "loss":
            return _LOSS_PASSES * loss_item_bytes(self.stack, self.spec, item_bytes) / (2 * item_bytes)
        if op.kind == "norm" and self.spec.norm == "rms":
            return self.stack.rms_passes
        if op.kind == "activation" and self.spec.gated:
            return self.stack.gated_passes
        return self.stack.passes.get(op.kind, 1.0)

    def _attention(self, op: Op, step: Step, softmax_bytes: int) -> tuple[float, float]:
        """(seconds of arithmetic, bytes moved) of one of attention's three ops."""
        spec = self.spec
        fused = self.stack.fuses_attention(spec)
        if op.name == "softmax":
            # Inside a fused kernel its traffic does not exist, and its arithmetic is in the share that the products reach.
            return (0.0, 0.0) if fused else (op.flops / self.limits.vector_flop_s("float32"), float(op.activation_bytes))
        # Kernels skip what the causal mask hides only if it is the plain triangle, with no bias.
        skips = fused and not isinstance(spec.positions, Alibi)
        flops = op.flops if skips or spec.encoder else op.flops * step.attended(causal="full") / step.attended(causal="half")
        compute = flops / (self.limits.matmul_flop_s(op.dtype) * self.efficiency.attention)
        around = op.activation_bytes - softmax_bytes // 2
        traffic = op.bytes_moved + around * (1 + self.stack.copies)
        if not fused:
            traffic += softmax_bytes // 2
        if self.stack.repeats_keys and spec.kv_heads < spec.heads and any(share.queries > 1 for share in step.shares):
            # Keys (or values) as wide as the queries are written once and read once more.
            traffic += 2 * around
        return compute, traffic
