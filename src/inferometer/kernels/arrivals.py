"""Programs of one launch that work on a result together: the last of them to arrive puts it together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.kernels.support import kernel, tl

MOST_ARRIVALS = 1 << 17
"""Results of one launch that have a counter."""


_APART: Final[ContextVar[bool]] = ContextVar("apart", default=False)


def arrivals(device: torch.device) -> Tensor:
    """int32 (MOST_ARRIVALS,), zeros between launches: how many programs have arrived at each result in this one.

    Launches on one device must follow each other, as they do in a stream: they share these. See `counted_apart` for those that do not.
    """
    return _counters(device, apart=_APART.get())


@contextmanager
def counted_apart() -> Iterator[None]:
    """Launches made in here may run beside those that are not: they have counters of their own."""
    before = _APART.set(True)
    try:
        yield
    finally:
        _APART.reset(before)


@lru_cache
def _counters(device: torch.device, *, apart: bool) -> Tensor:
    del apart  # part of what is remembered
    return torch.zeros(MOST_ARRIVALS, dtype=torch.int32, device=device)


@kernel()
def last_to_arrive(counter: Any, expected: Any) -> Any:
    """Whether this program is the last of `expected` ones at the counter, which is then zero again.

    What the others have stored before is there for the last, read past the L1 cache (".cg"). Called behind the wait for the launch
    ahead, so that nobody counts while that may still reset.
    """
    # All threads have written before one says so.
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == expected - 1
    if last:
        tl.store(counter, 0)
    return last
