"""Whether prompts run in one pass with those that decode, or in one of their own behind them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from inferometer.engine.device_clock import median_seconds
from inferometer.engine.sweep_graphs import FEW_TOKENS
from inferometer.nn.linear import Linear
from inferometer.nn.transformer import Transformer

MOST_KNOWN = 4096
"""Sizes that are remembered; then all are forgotten."""

LAYERS = 3
"""Timed one after another, so that few of their weights are still in the cache from the pass before."""

REPEATS = 3


class SweepSplit:
    """One pass reads the weights once. Two read them twice, but the prompts' matrix products keep the size that they have alone: a few rows
    more may need another wave of tiles on all processors, which takes as long as a full one. Which it is depends on the sizes and on the
    matrix library, and is measured when the same sizes come up a second time, as they do when groups of one length follow each other.

    seconds: what a layer's linear maps take for so many rows. least: prompt tokens up to which it is always one pass.
    """

    def __init__(self, seconds: Callable[[int], float], least: int = FEW_TOKENS) -> None:
        self._seconds = seconds
        self._least = least
        self._known: dict[tuple[int, int], bool | None] = {}

    @property
    def preparations(self) -> int:
        """Sizes that were met, and once more for those that were measured."""
        return len(self._known) + sum(known is not None for known in self._known.values())

    def divides(self, tokens: int, rows: int) -> bool:
        """Whether `tokens` tokens of prompts and `rows` rows that decode are to run one after the other."""
        if not rows or tokens <= self._least:
            return False
        key = tokens, (rows - 1).bit_length()
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = None
            return False
        known = self._known[key]
        if known is None:
            known = self._known[key] = self._seconds(tokens) + self._seconds(rows) < self._seconds(tokens + rows)
        return known


class LayerClock:
    """Times linear maps of a model on a GPU, whose layers have one size."""

    def __init__(self, model: Transformer) -> None:
        self._model = model

    @torch.inference_mode()
    def seconds(self, rows: int) -> float:
        """Of a layer's maps for so many rows. Waits for the device."""
        maps = [module for layer in self._model.layers[:LAYERS] for module in layer.modules() if isinstance(module, Linear)]
        device, dtype = self._model.device, self._model.dtype
        inputs = {map_.weight.shape[1]: torch.randn(rows, map_.weight.shape[1], device=device, dtype=dtype) for map_ in maps}

        def run() -> None:
            for map_ in maps:
                map_(inputs[map_.weight.shape[1]])

        run()  # compiled, and its memory taken
        return median_seconds(run, device, repeats=REPEATS) / min(LAYERS, len(self._model.layers))
