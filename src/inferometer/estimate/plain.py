"""Whether weights that are not rounded would be faster: of many rows, what is widened costs more than its bytes save."""

from __future__ import annotations

from collections.abc import Callable

from inferometer.estimate.answer import Estimate, Phase
from inferometer.estimate.fewer import NOTICED


def faster_in_plain(found: Estimate, plain: Callable[[], Estimate]) -> dict[Phase, Estimate]:
    """By phase, the same request with weights of the activations' type, where that is faster and has the memory.

    plain: that request. It is not asked for where weights are plain already, or are in few bits in the checkpoint itself.
    """
    if found.request.quantize is None or found.request.stored:
        return {}
    other = plain()
    if not other.fits:
        return {}
    return {phase: other for phase, each in found.phases.items() if other.phases[phase].cost.ms < each.cost.ms / NOTICED}
