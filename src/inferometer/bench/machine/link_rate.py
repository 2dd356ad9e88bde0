"""What copies from the host's memory reach."""

from __future__ import annotations

from typing import Final

import torch

from inferometer.engine.device_clock import median_seconds
from inferometer.nn.host_buffer import HostBuffer

_BYTES: Final = 256 << 20
_COPIES: Final = 5


def copy_rate(device: torch.device) -> float:
    """Bytes/s of a GPU's copies from page-locked memory: the median of a few large ones. Waits for the device."""
    buffer, target = HostBuffer(_BYTES, device), torch.empty(_BYTES, dtype=torch.uint8, device=device)
    seconds = median_seconds(lambda: target.copy_(buffer.tensor, non_blocking=True), device, repeats=_COPIES)
    buffer.close()
    return _BYTES / seconds
