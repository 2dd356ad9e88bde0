"""The largest batch and the longest prompts that a device has memory for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from inferometer.estimate.layout import Layout
from inferometer.estimate.memory import is_cpu, memory
from inferometer.estimate.stack import Stack
from inferometer.estimate.workload import Workload
from inferometer.hardware.device import DeviceSpec
from inferometer.model.formats import Formats
from inferometer.model.spec import ModelSpec

_MOST: Final = 1 << 40


def largest_batch(
    spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload, device: DeviceSpec, layout: Layout | None = None
) -> int | None:
    """The most sequences of the workload's lengths that fit on the device; 0 if not even one does, None if any number does.

    Any number does where each group is gone before the next one comes, as after prompts that generate a single token.
    """
    return _largest(lambda batch: _fits(spec, formats, stack, replace(workload, batch=batch), device, layout))


def largest_context(
    spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload, device: DeviceSpec, layout: Layout | None = None
) -> int | None:
    """The longest prompts of the workload's batch that fit on the device, with the tokens that follow; 0 if none do, None if all do.

    At most what the model's positions leave.
    """
    most = None if spec.context_limit is None else spec.context_limit - workload.generated
    return _largest(lambda length: _fits(spec, formats, stack, replace(workload, length=length), device, layout), most)


def _fits(spec: ModelSpec, formats: Formats, stack: Stack, workload: Workload, device: DeviceSpec, layout: Layout | None) -> bool:
    needed = memory(spec, formats, stack, workload, cpu=is_cpu(device), layout=layout)
    return needed.device_bytes <= device.usable_memory_bytes


def _largest(fits: Callable[[int], bool], most: int | None = None) -> int | None:
    """The largest whole number that fits, of those from 1 to `most`; 0 if none does, None if there is no end to them.

    What fits does not depend on what is larger.
    """
    if (most is not None and most < 1) or not fits(1):
        return 0
    if most is None and fits(_MOST):
        return None
    low, high = 1, 2
    while (most is None or high <= most) and fits(high):
        low, high = high, 2 * high
    high = high if most is None else min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
