"""The link between the host's memory and the device: copies in order, beside what the device computes."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

import torch
from torch import Tensor

PIECE_BYTES = 1 << 20
"""Copied at once where a rate is kept: elements of what is copied, which are bytes."""


class Mark(Protocol):
    """A place in the order of the device's work or of the link's copies."""

    def hold(self) -> None:
        """What is given to the current stream from now on begins once this has been reached."""

    def wait(self) -> None:
        """Returns once it has been reached."""


class Link(Protocol):
    """Copies one after another. What `copy` is given must stay until a later mark has been reached."""

    def computed(self) -> Mark:
        """The end of what the current stream has been given so far."""

    def after(self, mark: Mark) -> None:
        """Copies that follow begin once `mark` has been reached."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Queues a copy between tensors of equal shape and type, one of them pinned."""

    def copied(self) -> Mark:
        """The end of all copies so far."""


def link_to(device: torch.device) -> Link:
    """The link that a device has."""
    return GpuLink(device) if device.type == "cuda" else MemoryLink()


class GpuLink:
    """A stream of its own on a GPU. Nothing here waits on the host but `Mark.wait`."""

    def __init__(self, device: torch.device) -> None:
        stream: Any = torch.cuda.Stream
        self._stream: torch.cuda.Stream = stream(device)

    def computed(self) -> Mark:
        return _EventMark(torch.cuda.current_stream(self._stream.device))

    def after(self, mark: Mark) -> None:
        with torch.cuda.stream(self._stream):
            mark.hold()

    def copy(self, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def copied(self) -> Mark:
        return _EventMark(self._stream)


class _EventMark:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        event: Any = torch.cuda.Event
        self._event: torch.cuda.Event = event()
        self._event.record(stream)
        self._device = stream.device

    def hold(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)

    def wait(self) -> None:
        self._event.synchronize()


class MemoryLink:
    """For a device whose memory is the host's own: a copy is done when `copy` returns, and takes as long as a link of `bytes_s` would."""

    def __init__(self, bytes_s: float | None = None) -> None:
        self._bytes_s = bytes_s
        self._never = threading.Event()

    def computed(self) -> Mark:
        return _PAST

    def after(self, mark: Mark) -> None:
        pass

    def copy(self, target: Tensor, source: Tensor) -> None:
        if self._bytes_s is None:
            target.copy_(source)
            return
        begun, done = time.perf_counter(), 0
        for into, piece in zip(torch.split(target, PIECE_BYTES), torch.split(source, PIECE_BYTES), strict=True):
            into.copy_(piece)
            done += piece.nbytes
            self._never.wait(max(0.0, begun + done / self._bytes_s - time.perf_counter()))

    def copied(self) -> Mark:
        return _PAST


class _Past:
    """A mark that has been reached."""

    def hold(self) -> None:
        pass

    def wait(self) -> None:
        pass


_PAST = _Past()
