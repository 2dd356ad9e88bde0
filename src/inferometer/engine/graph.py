"""A CUDA graph: work that is recorded once and launched as a whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch


class Graph:
    """A function over tensors at fixed places, recorded at construction (not run) and run by calling.

    The function has run before with the same shapes, so that nothing is compiled or measured while it is recorded; it must not read
    the device. pool: where its temporary memory comes from, shared with graphs that never run at the same time. recording: the stream on
    which it is recorded, whose priority and workspaces it keeps; None for one that all such graphs share. Elsewhere than on a GPU a call
    runs the function. Raises what the function raises: torch.OutOfMemoryError also where only the allocator's cache is in the way, which is
    not given up while anything is recorded.

    torch.cuda.graph would wait for the whole device first; here only the recording stream is ordered behind the current one.
    """

    def __init__(self, function: Callable[[], None], device: torch.device, pool: Any, recording: torch.cuda.Stream | None = None) -> None:
        self._run = function
        if device.type != "cuda":
            return
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(device)
        recording = recording or recording_stream(device)
        recording.wait_stream(current)
        with torch.cuda.stream(recording):
            # Relaxed: the allocators may ask about events of work that is still under way, which recording would else forbid.
            graph.capture_begin(pool=pool, capture_error_mode="relaxed")
            try:
                function()
            except BaseException:
                # The stream must record no longer, whatever happens; why it did not record says more than that nothing was recorded.
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(recording)
        # Not the function: whoever it belongs to may own this graph, and the memory of both should go when the owner goes.
        self._run = graph.replay

    def __call__(self) -> None:
        self._run()


@lru_cache
def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all graphs of a device: matrix libraries keep a workspace for every stream that they have seen."""
    stream: Any = torch.cuda.Stream
    made: torch.cuda.Stream = stream(device)
    return made
