"""A model as it runs somewhere: a stack on so many devices, with number formats; what any step of it costs, and its bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from inferometer.estimate.bound import Bound, bound
from inferometer.estimate.cost import Cost
from inferometer.estimate.layout import Layout
from inferometer.estimate.limits import Limits
from inferometer.estimate.machine import Machine, machine
from inferometer.estimate.power import Power
from inferometer.estimate.price import Pricing
from inferometer.estimate.stack import Stack
from inferometer.hardware.device import DeviceSpec
from inferometer.model.formats import Formats
from inferometer.model.ops import Op
from inferometer.model.spec import ModelSpec
from inferometer.model.step import Step


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """limits hold the link between the devices, None for one. power: None where nobody states the device's limit. sorts: tokens are drawn
    by top-p."""

    spec: ModelSpec
    device: DeviceSpec
    stack: Stack
    layout: Layout
    formats: Formats
    limits: Limits
    power: Power | None
    sorts: bool = False

    @cached_property
    def machine(self) -> Machine:
        """What one device gives."""
        return machine(self.device, self.limits, own_kernels=self.stack.name == "native")

    @property
    def devices(self) -> int:
        """How many devices work."""
        return self.layout.devices

    @property
    def local(self) -> Formats:
        """The formats with the shards over which attention is cut."""
        return replace(self.formats, shards=self.devices if self.layout.parallel == "tensor" else 1)

    def cost(self, step: Step) -> Cost:
        """What a step is expected to take."""
        return self.price(self.layout.ops(self.spec, step, self.formats), step)

    def price(self, ops: tuple[Op, ...], step: Step) -> Cost:
        """What these ops are expected to take, as part of such a step."""
        return self._pricing.cost(ops, step)

    def bound(self, step: Step) -> Bound:
        """The least that it can take."""
        return bound(self.layout.ops(self.spec, step, self.formats), self.limits)

    @cached_property
    def _pricing(self) -> Pricing:
        return Pricing(
            spec=self.spec,
            stack=self.stack,
            machine=self.machine,
            formats=self.local,
            power=self.power,
            devices=self.devices,
            sorts=self.sorts,
            turns=self.layout.parallel == "layers" and self.devices > 1,
        )
