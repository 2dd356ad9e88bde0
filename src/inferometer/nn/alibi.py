"""ALiBi: attention with linear biases (Press, Smith and Lewis, 2021, arXiv:2108.12409)."""

from __future__ import annotations

import math

from inferometer.model.spec import Alibi


def slopes(heads: int) -> tuple[float, ...]:
    """The slope of each head: a geometric sequence that starts at 2^(-8/n) for n a power of two.

    Where `heads` is no power of two, the rest are every second slope of the next power of two, as BLOOM was trained.
    """
    power = 2 ** math.floor(math.log2(heads))
    base = 2.0 ** (-8.0 / power)
    first = [base ** (i + 1) for i in range(power)]
    finer = 2.0 ** (-4.0 / power)
    return tuple(first + [finer ** (2 * i + 1) for i in range(heads - power)])


def slopes_of(positions: Alibi, heads: int) -> tuple[float, ...]:
    """The slopes of a spec's own heads, which may be some of another's."""
    return slopes(positions.of or heads)[positions.first : positions.first + heads]
