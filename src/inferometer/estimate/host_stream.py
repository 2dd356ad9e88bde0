"""What comes to a device from its host, and goes back, in every pass through the layers: weights, and pages whose home is there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferometer.estimate.bound import Bound
from inferometer.estimate.cost import Cost
from inferometer.hardware.calibration import Calibration
from inferometer.hardware.device import DeviceSpec
from inferometer.hardware.links import host_link
from inferometer.model.step import Step

HOST_SHARE = 0.82
"""Of a host link's wire rate, copies from pinned memory: 25 to 26 of 31.5 GB/s over PCIe 4, 52 to 55 of 63 over PCIe 5."""

BOTH_WAYS = 1.55
"""Of the rate in one direction, what both carry together: 85 against 55 GB/s over PCIe 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStream:
    """weight_bytes: of the layers that are streamed, a pass. token_bytes: of the keys and values of a token whose page is on the host.

    bytes_s: as copies are expected to run in one direction. wire_bytes_s: the most that they can: as measured, else the link's own rate.
    """

    weight_bytes: float
    token_bytes: float
    bytes_s: float
    wire_bytes_s: float

    @classmethod
    def of(cls, device: DeviceSpec, calibration: Calibration | None, *, weight_bytes: float, token_bytes: float) -> HostStream | None:
        """None where nothing is streamed, or there is no link."""
        link = host_link(device)
        if link is None or not (weight_bytes or token_bytes):
            return None
        measured = None if calibration is None else calibration.host_to_device_bytes_s
        expected = measured or link.bandwidth_bytes_s * HOST_SHARE
        wire = measured or link.bandwidth_bytes_s
        return cls(weight_bytes=weight_bytes, token_bytes=token_bytes, bytes_s=expected, wire_bytes_s=wire)

    def ms(self, step: Step, passes: int = 1) -> float:
        """What the link is expected to need for a step that takes so many passes through the layers."""
        return self._ms(step, passes, self.bytes_s)

    def cost(self, cost: Cost, step: Step, passes: int, static_w: float | None) -> Cost:
        """Of a step during which it comes: the slower of the two decides. static_w: what the device draws while it waits."""
        ms = self.ms(step, passes)
        cost = replace(cost, stream_ms=ms)
        if ms <= cost.ms:
            return cost
        watts = None if cost.watts is None or static_w is None else (cost.watts * cost.ms + static_w * (ms - cost.ms)) / ms
        return replace(cost, ms=ms, watts=watts)

    def bound(self, bound: Bound, step: Step, passes: int) -> Bound:
        """The least time of the same."""
        ms = self._ms(step, passes, self.wire_bytes_s)
        bound = replace(bound, link_ms=1e3 * self._comes(step, passes) / self.wire_bytes_s, stream_ms=ms)
        return bound if ms <= bound.ms else replace(bound, ms=ms, shares={"memory": 0.0, "compute": 0.0, "link": 1.0})

    def _comes(self, step: Step, passes: int) -> float:
        """Bytes from the host."""
        return passes * self.weight_bytes + self.token_bytes * step.context_tokens

    def _ms(self, step: Step, passes: int, bytes_s: float) -> float:
        comes = self._comes(step, passes)
        goes = self.token_bytes * step.tokens
        return 1e3 * max(comes / bytes_s, goes / bytes_s, (comes + goes) / (BOTH_WAYS * bytes_s))
