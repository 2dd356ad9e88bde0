"""Energy, crudely: the power limit times how hard the device works."""

from __future__ import annotations

from inferometer.estimate.price import Cost
from inferometer.hardware.device import DeviceSpec

# Shares of the power limit. Serving leaves an H100 at 0.33 at its idlest and 0.74 in the median, which decode sets (ML.ENERGY
# leaderboard v3, 565 runs); an A100 decodes a 70B model at 0.74 and prefills at its limit (Splitwise, 2023).
IDLE_SHARE = 0.30
MEMORY_SHARE = 0.74
COMPUTE_SHARE = 1.0

BASIS = "power limit x utilisation (idle 0.30, memory-bound 0.74, compute-bound 1.00 of the limit)"


def step_joules(cost: Cost, device: DeviceSpec, devices: int) -> float | None:
    """Joules of one step on all devices; None for a device whose power limit nobody states."""
    if device.power_limit_w is None:
        return None
    waiting = max(0.0, cost.ms - cost.compute_ms - cost.memory_ms)
    busy = cost.compute_ms * COMPUTE_SHARE + cost.memory_ms * MEMORY_SHARE + waiting * IDLE_SHARE
    return device.power_limit_w * busy / 1e3 * devices
