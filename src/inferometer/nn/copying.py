"""Copies beside the computation: queued in order, waited for by events, never by the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""Where to, and what."""


class Mark(Protocol):
    """A moment in the order of copies or of the computation."""

    def synchronize(self) -> None:
        """The host waits for it."""


class Copier(Protocol):
    """One direction between host and device. Copies run one after another, beside whatever else the device does."""

    def copy(self, pairs: Sequence[Pair], after: Sequence[Mark] = ()) -> Mark:
        """Queues copies between contiguous tensors of one shape and dtype, behind `after`. Returns the mark behind them."""

    def mark(self) -> Mark:
        """Behind all that the computation has launched so far."""

    def wait(self, mark: Mark) -> None:
        """What the computation launches from now on runs behind the mark."""

    def close(self) -> None:
        """The host waits until no copy is under way; there are no more. Raises whatever one has failed by."""


def copier(device: torch.device) -> Copier:
    """A copier for one direction between the host and `device`."""
    return StreamCopier(device) if device.type == "cuda" else InlineCopier()


class StreamCopier:
    """A stream of its own on a GPU; the computation is whatever stream is current."""

    def __init__(self, device: torch.device) -> None:
        stream: Any = torch.cuda.Stream
        self._stream: torch.cuda.Stream = stream(device)

    def copy(self, pairs: Sequence[Pair], after: Sequence[Mark] = ()) -> Mark:
        """Asynchronous where the host's side is page-locked."""
        with torch.cuda.stream(self._stream):
            for mark in after:
                assert isinstance(mark, torch.cuda.Event)
                self._stream.wait_event(mark)
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            return _recorded(self._stream)

    def mark(self) -> Mark:
        """An event on the current stream."""
        return _recorded(torch.cuda.current_stream(self._stream.device))

    def wait(self, mark: Mark) -> None:
        """The current stream waits."""
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self._stream.device).wait_event(mark)

    def close(self) -> None:
        """Waits for the stream."""
        self._stream.synchronize()


class Passed:
    """A moment that has passed."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class InlineCopier:
    """Copies at once: on a CPU nothing runs beside the computation."""

    def copy(self, pairs: Sequence[Pair], after: Sequence[Mark] = ()) -> Mark:
        """Done when it returns."""
        for target, source in pairs:
            target.copy_(source)
        return Passed()

    def mark(self) -> Mark:
        """All that was launched has run."""
        return Passed()

    def wait(self, mark: Mark) -> None:
        """The mark has passed."""

    def close(self) -> None:
        """Nothing is under way."""


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event: Any = torch.cuda.Event
    made: torch.cuda.Event = event()
    made.record(stream)
    return made
