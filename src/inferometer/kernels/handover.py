"""Parts of a result, handed to the program that puts it together through memory that says by itself what has come."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from inferometer.kernels.support import kernel, tl

ROOM = 1 << 22
"""Numbers that the programs of one launch can hand over."""


@lru_cache
def handover(device: torch.device) -> Tensor:
    """int32 (ROOM,), the bits of float32 numbers, all of them absent between launches.

    Launches on one device must follow each other, as they do in a stream: they share these. Whoever takes must come behind those that
    hand in the order of the grid, as programs begin in that order: else it could wait for one that it keeps from beginning.
    """
    return torch.full((ROOM,), -1, dtype=torch.int32, device=device)


@kernel()
def hand(places: Any, value: Any) -> None:
    """Leaves numbers at these places, behind the wait for the launch ahead."""
    bits = value.to(tl.int32, bitcast=True)
    # A number must not look as if it had not come: those bits are of none that arithmetic makes, but may have been read.
    tl.store(places, tl.where(bits == -1, 0x7FFFFFFF, bits))


@kernel()
def hand_where(places: Any, value: Any, real: Any) -> None:
    """As `hand`, the real ones of them."""
    bits = value.to(tl.int32, bitcast=True)
    tl.store(places, tl.where(bits == -1, 0x7FFFFFFF, bits), mask=real)


@kernel()
def take(places: Any, real: Any) -> Any:
    """The numbers at these places once all have come, which are then absent again; 0 where there are to be none."""
    bits = tl.load(places, mask=real, other=0, volatile=True)
    while tl.max((bits == -1).to(tl.int32)) != 0:
        bits = tl.load(places, mask=real, other=0, volatile=True)
    # No thread waits any more for what is taken away here.
    tl.debug_barrier()
    tl.store(places, tl.full(places.shape, -1, tl.int32), mask=real)
    return bits.to(tl.float32, bitcast=True)
