"""What a device gives in practice of the rates on its datasheet, and what its power limit leaves of them."""

from __future__ import annotations

from dataclasses import dataclass

from inferometer.estimate.limits import Limits
from inferometer.hardware.device import DeviceSpec

# Of a datasheet's dense rate, the best matrix product at full clock: 0.87 on an A100 SXM, whose power limit does not bind there, 0.80 on an
# H100 and 0.84 on a GH200, 0.78 on a B200 (S. Bekman, Machine Learning Engineering, MAMF table; what a power limit takes in longer runs is
# the power model's). AMD's MI300X reaches 0.51. By vendor, and by compute capability where that is known.
_BEST_MATMUL = {"AMD": 0.51, "9.0": 0.82, "10.0": 0.80}
_BEST_MATMUL_ELSEWHERE = 0.87
# In 8 bits the best is 0.71 on an H100, 0.76 on a B200 (the same table): nine tenths of the share in 16.
_EIGHT_BITS = 0.9
# Of a datasheet's bandwidth, one long copy or read: 684 of 768 GB/s on an RTX A5000 (TorchCAP's profile), 3.0 of 3.35 TB/s on an H100 SXM
# (benchmarks/measurements), 790 of 900 on a V100 and 240 of 320 on a T4 (Jia et al. 2018, 2019), 1.75 of 2.04 TB/s on an A100 80 GB.
_MEMORY = {"t4": 0.75, "a100-sxm-80gb": 0.86, "a100-pcie-80gb": 0.86, "mi300x": 0.75, "mi250x": 0.75}
_MEMORY_ELSEWHERE = 0.89
# The last cache carries about three times what the memory does (A100: 5.1 TB/s read against 1.6, Chips and Cheese 2023; H100 alike), for
# what fits into half of it beside everything else.
_CACHE_SPEED = 3.0
_CACHE_SHARE = 0.5
_A100_CLOCK_HZ = 1.41e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rates that one device sustains at full clock, its limits beside it. asynchronous: the host runs ahead of it, as with a GPU.
    own_kernels: products are this program's own, not the matrix library's."""

    device: DeviceSpec
    limits: Limits
    matmul_share: float
    memory_bytes_s: float
    cache_bytes: float
    asynchronous: bool
    own_kernels: bool

    def matmul_flop_s(self, dtype: str) -> float:
        """Of large products of such operands."""
        share = self.matmul_share * (_EIGHT_BITS if dtype == "fp8" and self.limits.basis != "calibrated" else 1.0)
        return self.limits.matmul_flop_s_of(dtype, own_kernels=self.own_kernels) * share

    def vector_flop_s(self, dtype: str) -> float:
        """Of element-wise work."""
        return self.limits.vector_flop_s(dtype)

    def shared_s(self, seconds: float) -> float:
        """Of what takes one multiprocessor so long at an A100's clock, where all of this device share it."""
        cycles = _A100_CLOCK_HZ / (self.device.boost_clock_hz or _A100_CLOCK_HZ)
        return seconds * cycles / (self.device.multiprocessors or 1)

    def passing_s(self, moved_bytes: float) -> float:
        """Seconds to move what one kernel leaves for the next: what fits into the cache is faster."""
        cached = min(moved_bytes, self.cache_bytes)
        return (moved_bytes - cached + cached / _CACHE_SPEED) / self.memory_bytes_s


def machine(device: DeviceSpec, limits: Limits, *, own_kernels: bool = False) -> Machine:
    """What to expect of `device`. Measured limits already are what the device gives; a datasheet's are not."""
    measured = limits.basis == "calibrated"
    return Machine(
        device=device,
        limits=limits,
        matmul_share=1.0 if measured else _BEST_MATMUL.get(device.compute_capability or device.vendor, _BEST_MATMUL_ELSEWHERE),
        memory_bytes_s=limits.memory_bytes_s * (1.0 if measured else _MEMORY.get(device.slug, _MEMORY_ELSEWHERE)),
        cache_bytes=_CACHE_SHARE * (device.l2_bytes or 0),
        asynchronous=device.slug != "cpu",
        own_kernels=own_kernels,
    )
