"""How much of its limits a device gives in practice, by kind of op: few shares, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.estimate.limits import Limits
from inferometer.hardware.device import DeviceSpec

# Of a datasheet's dense rate: the best bfloat16 matrix product that a search over shapes found (S. Bekman, Machine Learning
# Engineering, "MAMF" table: A100 SXM 0.87, A100 PCIe 0.81, H100 SXM 0.80, B200 0.78, MI300X 0.51).
_BEST_MATMUL = {"a100-sxm-40gb": 0.87, "a100-sxm-80gb": 0.87, "h100-sxm": 0.80, "h200": 0.80, "b200": 0.78, "mi300x": 0.51, "mi250x": 0.51}
# Workstation and consumer cards run into their power limit: an RTX A5000 gives 70-75 of 111 TFLOP/s on large square products.
_BEST_MATMUL_ELSEWHERE = 0.70
# Shapes of a real model against the best shape.
_TYPICAL_SHAPE = 0.93
# A copy on an RTX A5000 reaches 684 of 768 GB/s; single-row products on A100 and H100 read weights at 0.89 and more at their best.
_DATASHEET_MEMORY = 0.89
# Kernels of a real model against one long copy.
_TYPICAL_MEMORY = 0.92
# Fused attention does its products between exponentials: about two thirds of a plain product's rate at head size 64 to 128.
_ATTENTION = 0.65
# A product fills and drains its pipeline once: as long as this many elements of its inner dimension take.
_FILL = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the limits, between 0 and 1."""

    matmul: float
    attention: float
    memory: float

    def matmul_of(self, inner: int) -> float:
        """For a product whose inner dimension is `inner`."""
        return self.matmul * inner / (inner + _FILL)


def efficiency(device: DeviceSpec, limits: Limits) -> Efficiency:
    """What to expect of `device`. Measured limits already are what the device gives; a datasheet's are not."""
    measured = limits.basis == "calibrated"
    best = 1.0 if measured else _BEST_MATMUL.get(device.slug, _BEST_MATMUL_ELSEWHERE)
    memory = (1.0 if measured else _DATASHEET_MEMORY) * _TYPICAL_MEMORY
    return Efficiency(matmul=best * _TYPICAL_SHAPE, attention=best * _ATTENTION, memory=memory)
