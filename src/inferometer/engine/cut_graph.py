"""A sweep over layers that come and go, as CUDA graphs: one for each stretch between the places where a layer is waited for or let go."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from inferometer.engine.graph import recording_stream
from inferometer.nn.residency import Residency
from inferometer.nn.transformer import Transformer


class CutGraph:
    """As `engine.graph.Graph`, of a function that runs the model's layers once. A call replays the stretches and asks the residency
    for the layers between them.

    streamed: the layers for which the residency has anything to do.
    """

    def __init__(
        self, function: Callable[[], None], model: Transformer, streamed: Collection[int], device: torch.device, pool: Any
    ) -> None:
        self._steps: list[Callable[[], None]] = []
        if device.type != "cuda":
            self._steps.append(function)
            return
        current, recording = torch.cuda.current_stream(device), recording_stream(device)
        recording.wait_stream(current)
        cuts = _Cuts(model.residency, frozenset(streamed), self._steps, pool)
        with torch.cuda.stream(recording):
            model.residency = cuts
            cuts.begin()
            try:
                function()
            finally:
                cuts.end()
                model.residency = cuts.residency
        current.wait_stream(recording)

    def __call__(self) -> None:
        for step in self._steps:
            step()


class _Cuts:
    """Stands in for a residency while a sweep is recorded: nothing runs, so that no layer need be there."""

    def __init__(self, residency: Residency, streamed: frozenset[int], steps: list[Callable[[], None]], pool: Any) -> None:
        self.residency = residency
        self._streamed, self._steps, self._pool = streamed, steps, pool
        self._graph: torch.cuda.CUDAGraph | None = None

    def acquire(self, layer: int) -> None:
        if layer in self._streamed:
            self.end()
            self._steps.append(partial(self.residency.acquire, layer))
            self.begin()

    def release(self, layer: int) -> None:
        if layer in self._streamed:
            self.end()
            self._steps.append(partial(self.residency.release, layer))
            if layer + 1 not in self._streamed:  # else there is nothing between the two
                self.begin()

    def begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # Relaxed, as in Graph.
        self._graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")

    def end(self) -> None:
        if self._graph is not None:
            self._graph.capture_end()
            self._steps.append(self._graph.replay)
            self._graph = None
