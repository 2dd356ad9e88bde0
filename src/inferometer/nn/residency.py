"""Where a layer's weights live, as the layer loop sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

LayerMemory = Callable[[Sequence[int]], Sequence[Tensor | None]]
"""Given the bytes of every layer: uint8 memory on the model's device that a layer's weights are to be views of, None for memory of its
own."""


class Residency(Protocol):
    """Brings a layer's weights in before it runs and may take them away after.

    `acquire(layer)` returns when the kernels launched next on the current stream will find the layer's weights in place;
    `release(layer)` says that all kernels that read them have been launched. Calls come in pairs, in layer order, once a sweep.
    """

    def acquire(self, layer: int) -> None: ...

    def release(self, layer: int) -> None: ...


class AllResident:
    """Every layer is always in place: both calls cost nothing."""

    def acquire(self, layer: int) -> None:
        pass

    def release(self, layer: int) -> None:
        pass
