"""What a matrix product takes with weights of any format: widened on the way to the matrix units, before that, or not at all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferometer.estimate.cost import OpTime
from inferometer.estimate.gemm import library, overlapped, product
from inferometer.estimate.machine import Machine
from inferometer.estimate.stack import Stack
from inferometer.model.formats import Formats
from inferometer.model.ops import Op

# Kernels that widen weights of fewer bits on the way read them at less than the full rate: gpt-fast decodes Llama-2-7B on an A100 80 GB
# at 104.9 tokens/s in bfloat16, at 155.6 with int8 and at 196.8 with int4 weights (its README, 2023).
_WIDENED_SHARE = 0.78
# Weights that a multiprocessor widens in a cycle, by the most rows that its kernel multiplies them by: the instructions that this takes.
# int4 at 16 rows takes an H200 69 us a layer of opt-6.7b (docs/quantize.md); int8 at 32 and 64 rows, widened, took 3.4 ms of bloomz-7b1's
# steps and 1.3 of doc004-1.3b's.
_WIDENED_A_CYCLE = ((4, math.inf), (16, 13.0), (32, 6.9), (64, 3.5))
# The same where matrix units read int8's bytes as they lie: launches of opt-6.7b's maps take an H200 21 to 26 us for 32 rows, 26 to 35 for
# 64 and 45 to 65 for 128 (kernels/quant_launch.py); of doc004-1.3b's, which are narrower, a tenth longer in proportion.
_BYTES_A_CYCLE = ((4, math.inf), (16, 13.0), (32, 8.5), (64, 7.5), (128, 4.3))
_READS_BYTES = "9.0"
_MANY_WEIGHTS = 1 << 24  # kernels/quant_launch.py
_VECTOR_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Prices products of activations and weights."""

    stack: Stack
    machine: Machine
    formats: Formats

    @property
    def _bytes_s(self) -> float:
        return self.machine.memory_bytes_s * self.stack.memory_share

    def op(self, op: Op) -> tuple[float, float, float]:
        """(tensor seconds, memory seconds, seconds besides) of a product, whose weight may have been widened before."""
        m, n, k = op.shape
        rate = self.machine.matmul_flop_s(op.dtype) * self.stack.matmul_share
        memory = self._operands_s(op)
        if not self.machine.asynchronous:
            return op.flops / rate, memory, 0.0
        best = product(
            m,
            n,
            k,
            flop_s=rate,
            bytes_s=self._bytes_s,
            memory_s=memory,
            multiprocessors=self.machine.device.multiprocessors,
            kernels=library(self.machine.device.compute_capability, op.dtype),
            groups=op.groups,
        )
        tiled = best.tensor_s, memory + best.partial_bytes / self._bytes_s, best.extra_s
        # A few rows are multiplied by the vector units, as products of vectors.
        plain = op.flops / (_VECTOR_SHARE * self.machine.vector_flop_s("float32")), memory, 0.0
        return min(tiled, plain, key=lambda parts: overlapped(parts[0], parts[1]) + parts[2])

    def widening(self, op: Op) -> OpTime | None:
        """What widening its weight as a whole takes, before the product; None where that is not done."""
        if not self._widens(op):
            return None
        moved = op.weight_bytes + self._wide_bytes(op)
        widened = Op(kind=op.kind, name=f"{op.name}_widened", shape=op.shape[1:], unit="vector", dtype=op.dtype, count=op.count)
        return OpTime(
            op=widened,
            tensor_s=0.0,
            vector_s=0.0,
            memory_s=op.count * moved / self._bytes_s,
            link_s=0.0,
            fixed_s=0.0,
            busy_s=0.0,
            bytes=op.count * moved,
            launches=0,  # what the host spends on a product's launch holds this one
        )

    def _operands_s(self, op: Op) -> float:
        """Seconds in which a product's operands come."""
        bytes_s = self._bytes_s * (self.stack.lone_reading if op.shape[0] == 1 and self.machine.asynchronous else 1.0)
        passing = op.activation_bytes / bytes_s
        if self._widens(op):
            return self._wide_bytes(op) / bytes_s + passing
        if not self._narrow(op):
            return op.bytes_moved / bytes_s + passing
        coming = op.bytes_moved / (_WIDENED_SHARE if op.kind == "gemm" else 1.0) / bytes_s
        # Formats that no kernel of ours widens are read as other stacks' kernels read theirs.
        if self.machine.asynchronous and self.stack.widened_rows and not self.formats.matrices.widened:
            coming = max(coming, self._widened_on_the_way_s(op))
        return coming + passing

    def _widened_on_the_way_s(self, op: Op) -> float:
        """Seconds of instructions that a product's kernel takes to widen its weight."""
        rows, outputs, inputs = op.shape
        device = self.machine.device
        rates = _BYTES_A_CYCLE if self._in_bytes else _WIDENED_A_CYCLE
        a_cycle = next((weights for most, weights in rates if rows <= most), math.inf)
        if device.boost_clock_hz is None:
            return 0.0
        return outputs * inputs * op.groups / (a_cycle * device.multiprocessors * device.boost_clock_hz)

    @property
    def _in_bytes(self) -> bool:
        """Whether matrix units read the weights as they lie."""
        stored = self.formats.weights
        return self.machine.device.compute_capability == _READS_BYTES and stored is not None and stored.element == "int8"

    def _widens(self, op: Op) -> bool:
        """Whether the weight is widened as a whole first."""
        if self.formats.matrices.widened:
            return False
        if not (self.machine.asynchronous and self._narrow(op) and 0 < self.stack.widened_rows < op.shape[0]):
            return False
        rows, outputs, inputs = op.shape
        return not (self._in_bytes and rows <= _BYTES_A_CYCLE[-1][0] and outputs * inputs > _MANY_WEIGHTS)

    def _narrow(self, op: Op) -> bool:
        """Whether the weight lies in fewer bits than it is multiplied in."""
        stored = self.formats.weights
        multiplied = stored is not None and stored.compute is not None and op.kind == "gemm"
        return stored is not None and not multiplied and op.weight_bytes < self._wide_bytes(op)

    def _wide_bytes(self, op: Op) -> int:
        """Of the weight in the type of activations."""
        return op.shape[1] * op.shape[2] * op.groups * self.formats.item_bytes
