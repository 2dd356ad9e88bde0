"""Which cases of a row can be under way at the same time on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# Of a device's memory, what processes side by side may be expected to fill. A forecast is not exact, and a case that fails for want of
# memory beside others is tried once more by itself.
SHARE: Final = 0.9


def together(needs: Sequence[int | None], room: int | None) -> list[list[int]]:
    """Positions of `needs` (bytes) in groups of neighbours, each group no more than fits into SHARE of `room`.

    What is not known (None), or does not fit beside another, is a group of its own.
    """
    groups: list[list[int]] = []
    held: int | None = None  # what the last group needs; None where nobody may join it
    for position, need in enumerate(needs):
        if need is not None and room is not None and held is not None and held + need <= SHARE * room:
            groups[-1].append(position)
            held += need
        else:
            groups.append([position])
            held = need
    return groups
