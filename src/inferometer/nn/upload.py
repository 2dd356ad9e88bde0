"""From the host to a device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def upload(values: Tensor | Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`values`, a tensor on the CPU or (nested) numbers, as a tensor of `dtype` on `device`.

    A copy from pageable memory waits until all work on the device is done. This one goes through pinned memory and only queues
    behind that work; torch's host allocator keeps the pinned block until the copy has been made. On the CPU a tensor that has
    the type already comes back itself.
    """
    host = values.to(dtype) if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)
