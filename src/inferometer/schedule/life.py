"""What becomes of a sequence's pages if it goes on to its limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Life(NamedTuple):
    """tokens: computed once the coming sweep has run. sweeps: how many more it runs in. growth: tokens that each of them adds."""

    tokens: int
    sweeps: int
    growth: int = 1


def peak_pages(lives: Iterable[Life], page_size: int) -> int:
    """The most pages that all hold together in any sweep.

    Holdings only grow until one ends, so that the sweeps in which one ends are all there is to look at: from the last one back, those
    that live join in. A sequence of q whole pages and m tokens holds, so many sweeps later, q + (m + sweeps) // page_size pages, rounded
    up by what q and m are taken from; those of equal m are counted together.
    """
    peak = whole = 0
    growing: dict[int, int] = {}
    ordered = sorted(lives, key=lambda life: -life.sweeps)
    for index, (tokens, sweeps, growth) in enumerate(ordered):
        pages, rest = divmod(tokens + page_size - 1, page_size)
        whole += pages
        if growth:
            growing[rest] = growing.get(rest, 0) + 1
        if index + 1 == len(ordered) or ordered[index + 1].sweeps != sweeps:
            peak = max(peak, whole + sum(count * ((rest + sweeps) // page_size) for rest, count in growing.items()))
    return peak
