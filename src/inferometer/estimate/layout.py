"""How several devices share a model, and the ops that one of them runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from inferometer.errors import UserError
from inferometer.model.formats import Formats
from inferometer.model.ops import Op
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step
from inferometer.model.work import work

Parallel = Literal["tensor", "mlp-tensor", "layers"]
PARALLELS: tuple[Parallel, ...] = ("tensor", "mlp-tensor", "layers")

_FEED_FORWARD = ("feed_forward_up", "activation", "feed_forward_down", "feed_forward_all_reduce")

# OPT's module flattens batch and length around its feed-forward block. torch's DTensor, which cuts only such blocks, then gathers the inner
# activations and scatters them again, as much traffic as an all-reduce of them: without it document 001's OPT rows on 8 GPUs are 51 to
# 58 % too fast, its others 3 %.
FLATTENS = "opt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`devices` that work on one model.

    tensor: every layer is cut over all of them. mlp-tensor: only the feed-forward blocks are, the rest is copied to each. layers: each
    has its own layers, and a batch passes from one to the next.
    """

    devices: int = 1
    parallel: Parallel = "tensor"

    def ops(self, spec: ModelSpec, step: Step, formats: Formats) -> tuple[Op, ...]:
        """The ops that follow each other in a step, on the devices that have to do them. Raises UserError where a cut is uneven."""
        if self.devices == 1:
            return work(spec, step, replace(formats, shards=1))
        if self.parallel == "tensor":
            return work(spec, step, replace(formats, shards=self.devices))
        whole = work(spec, step, replace(formats, shards=1))
        if self.parallel == "layers":
            return (*whole, self._transfer(spec, step, formats))
        # Heads that the devices divide: attention is not cut here, and its ops are not taken from this list.
        divided = replace(spec, heads=self.devices, kv_heads=spec.kv_heads if spec.latent else self.devices)
        cut = {op.name: op for op in work(divided, step, replace(formats, shards=self.devices)) if op.name in _FEED_FORWARD}
        ops: list[Op] = []
        for op in whole:
            ops.append(cut.get(op.name, op))
            if op.name == "feed_forward_down":
                ops.append(cut["feed_forward_all_reduce"])
            if op.name == "activation" and spec.family == FLATTENS:
                ops.append(self._inner_exchange(spec, step, formats))
        return tuple(ops)

    def check(self, spec: ModelSpec) -> None:
        """Raises UserError where the devices have nothing to do, or would cut what is not known to be cut so."""
        if self.parallel == "mlp-tensor" and self.devices > 1 and spec.experts is not None:
            raise UserError(
                f"--parallel mlp-tensor cuts feed-forward blocks, and those of {spec.name} are mixtures of experts; use --parallel tensor"
            )
        if self.parallel == "layers" and self.devices > spec.layers:
            raise UserError(
                f"--parallel layers: {spec.name} has {spec.layers} layers, too few for {self.devices} GPUs; use --gpus {spec.layers}"
            )

    def _inner_exchange(self, spec: ModelSpec, step: Step, formats: Formats) -> Op:
        payload = step.tokens * spec.feed_forward * formats.item_bytes
        return Op(
            kind="collective",
            name="feed_forward_inner_all_reduce",
            shape=(step.tokens, spec.feed_forward),
            unit="vector",
            dtype=formats.dtype,
            count=spec.layers,
            collective_bytes=-(-2 * (self.devices - 1) * payload // self.devices),
        )

    def _transfer(self, spec: ModelSpec, step: Step, formats: Formats) -> Op:
        sent = step.tokens * spec.hidden * formats.item_bytes
        return Op(
            kind="collective",
            name="layers_transfer",
            shape=(step.tokens, spec.hidden),
            unit="vector",
            dtype=formats.dtype,
            count=self.devices - 1,
            collective_bytes=sent,
        )
