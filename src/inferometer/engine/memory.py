"""How many bytes the KV cache may take on a device that already holds the weights."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from inferometer.errors import UserError
from inferometer.model.spec import ModelSpec


def kv_budget(spec: ModelSpec, device: torch.device, dtype: torch.dtype, *, tokens: int, fraction: float, limit_bytes: int | None) -> int:
    """Bytes left for the KV cache.

    tokens: the most tokens of one sweep, whose activations need room as well. fraction: share of the memory that is free now, of
    the whole device on a GPU. limit_bytes: a cap on everything the process takes there (--gpu-memory), weights included.
    Raises UserError if nothing is left.
    """
    if not 0 < fraction <= 1:
        raise UserError(f"memory_fraction must be above 0 and at most 1, not {fraction}")
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        available = int(free + reusable - (1 - fraction) * total)
        if limit_bytes is not None:
            available = min(available, limit_bytes - torch.cuda.memory_allocated(device))
    else:
        available = int(_free_host_bytes() * fraction)
        if limit_bytes is not None:
            available = min(available, limit_bytes)
    left = available - activation_bytes(spec, dtype, tokens)
    if left <= 0:
        raise UserError(
            f"no memory is left for the KV cache beside the weights of {spec.name} on {device.type}; "
            "raise --gpu-memory, use a 16-bit --dtype or a smaller model"
        )
    return left


def activation_bytes(spec: ModelSpec, dtype: torch.dtype, tokens: int) -> int:
    """Upper estimate of what one sweep of `tokens` holds at once: residual, norm, the wider of attention and feed-forward."""
    attention = 2 * (spec.query_size + 2 * spec.kv_size) + spec.query_size
    feed_forward = spec.feed_forward * (4 if spec.gated else 2)
    return tokens * dtype.itemsize * (3 * spec.hidden + max(attention, feed_forward))


def _free_host_bytes() -> int:
    """MemAvailable, or what the control group still allows if that is less."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux: half of what is installed
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, max(int(limit) - used, 0))
