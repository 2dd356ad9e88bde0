"""How much of a model's layers to stream so that what runs beside the weights has room too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Self

import torch

from inferometer.engine.memory import activation_bytes
from inferometer.engine.sequence_limit import sequence_limit
from inferometer.engine.sizes import PAGE_SIZE, SEATS
from inferometer.model.offload import Offload
from inferometer.model.placement import least_streamed
from inferometer.model.spec import ModelSpec
from inferometer.nn.cache import PagedCache
from inferometer.nn.tiered_cache import slots_bytes

TOKENS: Final = 512
"""Of the sequence whose pages an advised share leaves room for, where streaming can: requests come after the model."""


@dataclass(frozen=True, slots=True)
class BesideWeights:
    """Bytes that the device needs beside weights. enough: for a sequence of `TOKENS`; least: for a page of one."""

    enough: int
    least: int

    @classmethod
    def of(cls, spec: ModelSpec, dtype: torch.dtype, offload: Offload, *, on_host: bool) -> Self:
        """For so many pages elsewhere. on_host: whether the device is the CPU."""
        passing = activation_bytes(spec, dtype, SEATS)
        if not on_host:
            # The sampler's logits, also in float32; and recorded graphs keep their temporaries (`memory.page_budget` measures both).
            passing = 2 * (passing + SEATS * spec.vocabulary * (dtype.itemsize + torch.float32.itemsize))
        longest = -(-sequence_limit(spec) // PAGE_SIZE)
        page = PagedCache.page_bytes(spec, dtype, PAGE_SIZE)
        # Pages of the longest sequence must come through the slots, whatever is asked for.
        slots = -(-slots_bytes(spec, dtype, PAGE_SIZE, longest) // page) if offload.pages else 0

        def needed(pages: int) -> int:
            there = ceil((1 - offload.pages) * pages)
            cache = max(slots + there, 2 * there if slots else 0) * page  # slots may take half of what there is
            # A long sweep takes up to a quarter of what the weights leave.
            return max(passing + cache, -(-4 * cache // 3))

        return cls(needed(min(longest, TOKENS // PAGE_SIZE)), needed(1))

    def share(self, layer_bytes: Sequence[int], room_bytes: int) -> float | None:
        """The least share of the layers, in thousandths, that leaves of `room_bytes` what is enough; all of them where only the least is
        left then, None where not even that is."""
        least = least_streamed(layer_bytes, room_bytes - self.enough)
        if least is None:
            return None if least_streamed(layer_bytes, room_bytes - self.least) is None else 1.0
        return min(1.0, -(-1000 * least // sum(layer_bytes)) / 1000)
