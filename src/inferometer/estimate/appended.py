"""What a cache that grows by copies takes: each step concatenates what was there and the new token, keys and values a copy each."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.estimate.cost import OpTime
from inferometer.estimate.machine import Machine
from inferometer.estimate.stack import Stack
from inferometer.model.formats import Formats
from inferometer.model.ops import Op
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Prices the copies of one model's cache."""

    spec: ModelSpec
    stack: Stack
    machine: Machine
    formats: Formats

    def copy(self, written: Op, step: Step) -> OpTime | None:
        """Of keys and values so far, beside the op that writes the step's own; None where nothing is copied."""
        if self.stack.cache != "appended" or not step.context_tokens:
            return None
        held = step.context_tokens * written.kv_bytes / max(1, step.tokens)
        moved = self.stack.append_passes * held
        vector = 0.0
        if self.machine.asynchronous:
            vector = self.machine.shared_s(held / self.formats.kv_item_bytes * self._strided_share(step) * self.stack.strided_s)
        op = Op(kind=written.kind, name="cache_copy", shape=written.shape, unit="vector", dtype=written.dtype, count=written.count)
        return OpTime(
            op=op,
            tensor_s=0.0,
            vector_s=op.count * vector,
            memory_s=op.count * self.machine.passing_s(moved) / self.stack.memory_share,
            link_s=0.0,
            fixed_s=0.0,
            busy_s=0.0,
            bytes=op.count * moved,
            launches=0,  # those of the op beside it: new tokens are written by the same kernels
        )

    def _strided_share(self, step: Step) -> float:
        """Of the two copies, how many find each element's place by division."""
        least = self.stack.strided.get(self.spec.family, ())
        return sum(step.sequences >= rows for rows in least) / 2
