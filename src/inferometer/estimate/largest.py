"""The largest batch and the longest prompts that there is memory for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


def largest_context(workload: Workload, fits: Callable[[Workload], bool], limit: int | None, sweep_tokens: int | None = None) -> int | None:
    """The longest prompts of the workload's batch that fit, with the tokens that follow; 0 if none do, None if all do.

    limit: the model's positions, which prompts and tokens share; None for any number. sweep_tokens: most tokens of a pass, None for any
    number.

    Shorter prompts may be too much where longer ones fit: with one token each, those of a pass alone are held, and of shorter ones there
    are more in a pass, each with its last page.
    """
    most = None if limit is None else limit - workload.generated
    for shortest, longest in _equally_many(workload, sweep_tokens):
        end = longest if most is None else most if longest is None else min(longest, most)
        found = _largest(lambda length: fits(replace(workload, length=length)), end, shortest)
        if found != 0:
            return found
    return 0


def _equally_many(workload: Workload, sweep_tokens: int | None) -> Iterator[tuple[int, int | None]]:
    """The shortest and longest prompts, None for any, of which equally many are held at once; the longest prompts first."""

    def held(length: int) -> int:
        return replace(workload, length=length).holding(sweep_tokens)

    longest: int | None = None
    while longest != 0:
        fewer = held(longest or sweep_tokens or 1)
        shortest = 1 if sweep_tokens is None or fewer == held(1) else sweep_tokens // (fewer + 1) + 1
        yield shortest, longest
        longest = shortest - 1


def _largest(fits: Callable[[int], bool], most: int | None = None, least: int = 1) -> int | None:
    """The largest whole number that fits, of those from `least` to `most`; 0 if none does, None if there is no end to them.

    What fits does not depend on what is larger.
    """
    if (most is not None and most < least) or not fits(least):
        return 0
    if most is None and fits(_MOST):
        return None
    low, high = least, 2 * least
    while (most is None or high <= most) and fits(high):
        low, high = high, 2 * high
    high = high if most is None else min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
