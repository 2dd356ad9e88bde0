"""What copies from the host's memory reach."""

from __future__ import annotations

import statistics
from typing import Any, Final

import torch

from inferometer.nn.host_buffer import HostBuffer

_BYTES: Final = 256 << 20
_COPIES: Final = 5


def copy_rate(device: torch.device) -> float:
    """Bytes/s of a GPU's copies from page-locked memory: the median of a few large ones. Waits for the device."""
    buffer, target = HostBuffer(_BYTES, device), torch.empty(_BYTES, dtype=torch.uint8, device=device)
    event: Any = torch.cuda.Event
    rates: list[float] = []
    for _ in range(_COPIES):
        first, last = event(enable_timing=True), event(enable_timing=True)
        first.record()
        target.copy_(buffer.tensor, non_blocking=True)
        last.record()
        last.synchronize()
        rates.append(_BYTES / (first.elapsed_time(last) / 1e3))
    buffer.close()
    return statistics.median(rates)
