"""What a device draws while it works: a floor and the energy of what it does, under its power limit and with the clock that it leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferometer.hardware.device import DeviceSpec

# Of the power limit, what a card draws while kernels run that do next to nothing: clocks up, memory refreshed.
_STATIC_SHARE = 0.20
# An H100 serving: what 85 rows of ML.ENERGY say, for all models together.
_STATIC_SHARES = {"9.0": 0.24}
# Joules of one 16-bit operation (half a multiply-add) at boost clock, by compute capability: what explains the rates that cards sustain
# under their limits. 8.6 (Samsung 8 nm): 72 of 111 TFLOP/s at 230 W (RTX A5000), 105 of 155 at 300 W (RTX A6000), TorchCAP. 8.0 (TSMC 7
# nm): 253 of 312 at 300 W (A100 PCIe), 271 at 400 W; 9.0 and 10.0 (TSMC 4N, 4NP): 795 of 989 at 700 W (H100), 1745 of 2250 at 1000 W
# (B200), S. Bekman's MAMF table. 7.0 (TSMC 12 nm): about 100 of 125 at 300 W (V100). 7.5, the same at a higher clock: a T4 falls to about
# half its rate under 70 W (Jia et al. 2019). 8.9 and 12.0 are from their process and higher clocks.
_TENSOR_J = {
    "7.0": 2.5e-12,
    "7.5": 4e-12,
    "8.0": 1.0e-12,
    "8.6": 3.3e-12,
    "8.9": 1.6e-12,
    "9.0": 0.86e-12,
    "10.0": 0.55e-12,
    "12.0": 1.4e-12,
}
_TENSOR_J_ELSEWHERE = 0.8e-12
# A byte to or from memory, caches and registers on the way included: stacked memory, and chips beside.
_STACKED = ("7.0", "8.0", "9.0", "10.0")
_STACKED_J, _CHIPS_J = 128e-12, 180e-12
# A byte over a link between devices.
_LINK_J = 60e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Watts and joules of one device.

    static_w: while anything runs. tensor_w: beside it, with the tensor units busy all the time at boost clock, whatever they multiply.
    memory_j, link_j: a byte.
    """

    limit_w: float
    static_w: float
    tensor_w: float
    memory_j: float
    link_j: float

    def watts(self, seconds: float, *, tensor_s: float, memory_bytes: float, link_bytes: float, clock: float) -> float:
        """The mean over `seconds`, of which the tensor units would be busy `tensor_s` at boost clock.

        clock: the share of the boost clock. Voltage falls with it, so an operation's energy falls as its square.
        """
        work = tensor_s * self.tensor_w * clock**2 + memory_bytes * self.memory_j + link_bytes * self.link_j
        return self.static_w + (work / seconds if seconds else 0.0)

    def scaled(self, *, static: float = 1.0, tensor: float = 1.0, memory: float = 1.0) -> Power:
        """The same device with other figures."""
        return replace(self, static_w=self.static_w * static, tensor_w=self.tensor_w * tensor, memory_j=self.memory_j * memory)


def power(device: DeviceSpec) -> Power | None:
    """The power of a device; None where nobody states its limit."""
    if device.power_limit_w is None:
        return None
    kind = device.compute_capability or ""
    rate = device.tensor.float16 or device.vector.float16 or device.vector.float32 or 0.0
    stacked = kind in _STACKED or (device.vendor == "AMD")
    return Power(
        limit_w=device.power_limit_w,
        static_w=_STATIC_SHARES.get(kind, _STATIC_SHARE) * device.power_limit_w,
        tensor_w=rate * _TENSOR_J.get(kind, _TENSOR_J_ELSEWHERE),
        memory_j=_STACKED_J if stacked else _CHIPS_J,
        link_j=_LINK_J,
    )
