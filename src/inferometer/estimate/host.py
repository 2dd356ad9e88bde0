"""What the host of a step does: launching, what comes before and after, and how much of that the device hides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from inferometer.estimate.machine import Machine
from inferometer.estimate.stack import Stack
from inferometer.model.footprint import layer_weight_bytes
from inferometer.model.formats import Formats
from inferometer.model.ops import Op
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step

# LLM.int8() splits every product by where its operands' outliers are (Dettmers et al. 2022).
_DECOMPOSED = "bitsandbytes"
# How sharply the slower of host and device decides: they wait for each other a little where they are alike.
_OVERLAP = 6.0
# What an operation of eager modules takes of the host, in launches of the barest kernel as calibrated: 1.3 to 1.7 beside H200s (results/).
_BARE_LAUNCHES = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Seconds of one step: beside_s, while the device works; waits_s, while either waits for the other; after_s, before the device has
    begun or once it has ended. apart: nothing of it is beside the device."""

    beside_s: float
    waits_s: float
    after_s: float
    apart: bool

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.beside_s + self.waits_s + self.after_s

    def with_device_s(self, device_s: float) -> float:
        """The step, in which the device works for so long."""
        slower, faster = max(device_s, self.beside_s), min(device_s, self.beside_s)
        if self.apart:
            return device_s + self.seconds
        if not slower:
            return self.after_s
        return slower * float((1 + (faster / slower) ** _OVERLAP) ** (1 / _OVERLAP)) + self.after_s


@dataclass(frozen=True, kw_only=True)
class Host:
    """Prices what the host does for steps of one model on `devices` devices."""

    spec: ModelSpec
    stack: Stack
    machine: Machine
    formats: Formats
    devices: int

    def spends(self, launches: int, ops: tuple[Op, ...], step: Step) -> HostTime:
        """On a step of so many launches."""
        waits = self._waits_s(ops)
        return HostTime(
            beside_s=self._beside_s(launches, step),
            waits_s=waits,
            after_s=self._after_s(step),
            apart=bool(waits) or self.stack.synchronous or not self.machine.asynchronous,
        )

    @cached_property
    def _layer_weights(self) -> int:
        """Of one device."""
        return layer_weight_bytes(self.spec, Formats(dtype="float32")) // 4 // self.devices

    def _records_texts(self, step: Step) -> bool:
        """Whether a pass over whole texts, without a cache, is a recorded graph."""
        if step.cached or not self.stack.text_s or self.devices > 1:
            return False
        return 2 * step.tokens * self._layer_weights <= self.stack.recorded_layer_flops

    def records(self, step: Step) -> bool:
        """Whether a step is a recorded graph."""
        return (self.stack.recorded and decodes(step)) or self._records_prompts(step)

    def _records_prompts(self, step: Step) -> bool:
        prompts = [share for share in step.shares if share.queries > 1 or not share.before]
        tokens = sum(share.count * share.queries for share in prompts)
        light = tokens <= self.stack.recorded_most_tokens and 2 * tokens * self._layer_weights <= self.stack.recorded_layer_flops
        few = tokens <= self.stack.recorded_tokens or light
        alone = len(prompts) == len(step.shares)
        most = self.stack.recorded_prompts_alone if alone else self.stack.recorded_prompts
        return step.cached and few and 0 < sum(share.count for share in prompts) <= most

    def _beside_s(self, launches: int, step: Step) -> float:
        if self.stack.recorded and decodes(step):
            return self.stack.scheduled_s
        if self.stack.recorded_prefill or self._records_texts(step) or self._records_prompts(step):
            return 0.0
        measured = self.machine.limits.launch_s
        launch = max(self.stack.launch_s, _BARE_LAUNCHES * measured) if measured else self.stack.launch_s
        return launches * launch + self.spec.layers * self.stack.layer_s + (self.stack.step_s if self._ahead(step) else 0.0)

    def _ahead(self, step: Step) -> bool:
        """Whether the host goes on to the next step before this one has ended."""
        return self.stack.ahead and decodes(step)

    def _waits_s(self, ops: tuple[Op, ...]) -> float:
        """What the host spends on products that it cannot launch before it has seen their operands."""
        if self.formats.weights is None or self.formats.weights.name != _DECOMPOSED:
            return 0.0
        return self.stack.decomposed_s * sum(op.count for op in ops if op.kind == "gemm")

    def _after_s(self, step: Step) -> float:
        """What the device waits for, or what is done once it has ended."""
        prompts = sum(share.count * share.queries for share in step.shares if share.queries > 1)
        seconds = 0.0 if self._ahead(step) else self.stack.step_s
        seconds += self.stack.sequence_s * step.sequences + self.stack.prompt_token_s * prompts
        recorded = self._records_prompts(step)
        if step.cached and self.machine.asynchronous:
            each = self.stack.recorded_prompt_s if recorded else self.stack.prompt_s
            seconds += each * sum(share.count for share in step.shares if not share.before)
        if recorded:
            seconds += self.stack.replayed_s + (self.stack.told_s if self.devices > 1 else 0.0)
        if self.machine.asynchronous and self._records_texts(step):
            seconds += self.stack.text_s + self.stack.text_token_s * step.tokens
        if step.cached and not self.machine.asynchronous:
            seconds += self.stack.unhidden_s + self.stack.unhidden_sequence_s * step.sequences
        return seconds


def decodes(step: Step) -> bool:
    """Whether every sequence of a step has one token, behind others."""
    return all(share.queries == 1 and share.before for share in step.shares)
