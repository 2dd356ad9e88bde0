"""The largest batch and the longest prompts that there is memory for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from inferometer.estimate.workload import Workload

_MOST: Final = 1 << 40


def largest_batch(workload: Workload, fits: Callable[[Workload], bool]) -> int | None:
    """The most sequences of the workload's lengths that fit; 0 if not even one does, None if any number does.

    Any number does where each group is gone before the next one comes: after prompts that generate a single token, and where only so
    many groups are in flight at a time.
    """
    return _largest(lambda batch: fits(replace(workload, batch=batch)))


def largest_context(workload: Workload, fits: Callable[[Workload], bool], limit: int | None) -> int | None:
    """The longest prompts of the workload's batch that fit, with the tokens that follow; 0 if none do, None if all do.

    limit: the model's positions, which prompts and tokens share; None for any number.
    """
    most = None if limit is None else limit - workload.generated
    return _largest(lambda length: fits(replace(workload, length=length)), most)


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
