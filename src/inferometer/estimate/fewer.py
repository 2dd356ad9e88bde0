"""Whether a part of the devices would be faster: more of them save less than they take to tell each other their sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from inferometer.estimate.answer import Estimate, Phase
from inferometer.estimate.memory import is_cpu

NOTICED: Final = 1.02
"""What runs scatter, as in comparisons."""


def faster_on_fewer(found: Estimate, on: Callable[[int], Estimate]) -> dict[Phase, Estimate]:
    """By phase, what it takes on the number of devices that is fastest, where fewer are, and have the memory.

    on: the same request on so many devices. Halves of them are looked at, and halves of those; not of ranks on a CPU, of which all have
    its cores, and so many alone whose sums were measured.
    """
    fastest: dict[Phase, Estimate] = {}
    devices = 1 if is_cpu(found.request.device) else found.request.layout.devices
    while devices % 2 == 0:
        devices //= 2
        fewer = on(devices)
        for phase, each in found.phases.items():
            limit = fastest[phase].phases[phase].cost.ms if phase in fastest else each.cost.ms / NOTICED
            if fewer.fits and fewer.phases[phase].cost.ms < limit:
                fastest[phase] = fewer
    return fastest
