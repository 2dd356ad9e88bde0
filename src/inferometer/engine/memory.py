"""Whether a model's weights have room, and how many bytes the KV cache may take on a device that already holds them."""

from __future__ import annotations

import torch

from inferometer.errors import UserError
from inferometer.hardware.host_memory import free_host_bytes
from inferometer.model.parameters import parameter_count
from inferometer.model.spec import ModelSpec


class WeightsTooLargeError(UserError, MemoryError):
    """The weights have no room; the message says how much they need and how much is free."""


def check_weights(spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> None:
    """Raises WeightsTooLargeError where the host lacks the memory for the weights.

    The system grants a process more than there is and kills it when it writes there, so that nobody could say what happened. A GPU
    refuses by itself.
    """
    if device.type != "cpu":
        return
    needed, free = parameter_count(spec) * dtype.itemsize, free_host_bytes()
    if needed > free:
        name = str(dtype).removeprefix("torch.")
        raise WeightsTooLargeError(
            f"the weights of {spec.name} in {name} need {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB of this machine's memory are "
            "free; use a smaller model, or ask `inferometer estimate` where it fits"
        )


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
        available = int(free_host_bytes() * fraction)
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
