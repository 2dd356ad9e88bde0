"""Whether the rows of a sweep, those that decode and those of prompts behind them, are multiplied at once or one kind after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inferometer.engine.device_clock import median_seconds
from inferometer.nn.linear import Linear
from inferometer.nn.transformer import Transformer

MOST_KNOWN = 4096
"""Sizes that are remembered; then all are forgotten."""

ALIKE = 64
"""Rows that decode within which sizes count as one: the tiles of a matrix product are no smaller."""

LAYERS = 8
"""Whose maps are timed one after another, so that few of their weights are still in the cache from the run before."""

REPEATS = 3

AHEAD_CYCLES = 2_000_000
"""Of a GPU's clock: about a millisecond, several times what launching the maps takes."""

GAIN = 0.98
"""Two products for one must be faster than this share of its time: what is only noise is not worth another launch."""

Faster = Callable[[Sequence[Linear], int, int], bool]
"""Whether maps of one shape take rows in two parts, of so many and so many, faster than at once."""


class SweepCuts:
    """A matrix product takes as long as its waves of tiles on all processors. Prompts alone may fill whole ones, and a few rows that decode
    beside them then begin another, which takes as long as a full one; multiplied by themselves, right behind, they find the weights in
    the cache. Which is faster depends on the sizes and on the matrix library, and is measured for each of a layer's maps when the same
    sizes come up a second time, as they do when groups of one length follow each other.

    A cut changes only how `Linear` takes that many rows. model: on one device, its layers of one size.
    """

    def __init__(self, model: Transformer, faster: Faster) -> None:
        self._faster = faster
        layers = [[module for module in layer.modules() if isinstance(module, Linear)] for layer in model.layers]
        self._maps: list[tuple[Linear, ...]] = list(zip(*layers, strict=True))
        self._cuts: list[dict[int, int]] = [{} for _ in self._maps]
        for maps, cuts in zip(self._maps, self._cuts, strict=True):
            for each in maps:
                each.cuts = cuts
        self._known: dict[tuple[int, int], tuple[bool, ...] | None] = {}

    def meet(self, rows: int, tokens: int) -> None:
        """A sweep of so many rows that decode and so many tokens of prompts comes up."""
        if not rows or not tokens:
            return
        key = -(-rows // ALIKE), tokens
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
                for cuts in self._cuts:
                    cuts.clear()
            self._known[key] = None
            return
        known = self._known[key]
        if known is None:
            known = self._known[key] = tuple(self._faster(maps[:LAYERS], rows, tokens) for maps in self._maps)
        for cut, cuts in zip(known, self._cuts, strict=True):
            if cut:
                cuts[rows + tokens] = rows
            else:
                cuts.pop(rows + tokens, None)


class MapClock:
    """Times linear maps on a GPU, one right behind the other."""

    def __init__(self, model: Transformer) -> None:
        self._device, self._dtype = model.device, model.dtype

    @torch.inference_mode()
    def faster_in_two(self, maps: Sequence[Linear], first: int, second: int) -> bool:
        """As `Faster`. Waits for the device."""
        cuts, rows = maps[0].cuts, first + second
        states = torch.randn(rows, maps[0].weight.shape[1], device=self._device, dtype=self._dtype)
        cuts.pop(rows, None)
        whole = self._seconds(maps, states)
        cuts[rows] = first
        try:
            return self._seconds(maps, states) < GAIN * whole
        finally:
            del cuts[rows]

    def _seconds(self, maps: Sequence[Linear], states: torch.Tensor) -> float:
        def run() -> None:
            for each in maps:
                each(states)

        def busy() -> None:
            """The host is ahead of the device by the time that this ends; else short maps would wait to be launched."""
            cuda: Any = torch.cuda  # untyped in torch
            cuda._sleep(AHEAD_CYCLES)

        run()  # compiled, and its memory taken
        return median_seconds(run, self._device, repeats=REPEATS, before=busy)
