"""Forwards of whole texts, without a cache, as CUDA graphs: one for each list of lengths that comes again."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from inferometer.engine.device import synchronise
from inferometer.engine.graph import Graph
from inferometer.engine.sweep_graphs import LAYER_FLOPS
from inferometer.model.footprint import layer_weight_bytes
from inferometer.model.formats import Formats
from inferometer.nn.batch import RaggedBatch, flat_tokens, prompt_batch
from inferometer.nn.numerics import Numerics
from inferometer.nn.transformer import Transformer
from inferometer.nn.upload import pinned

MOST: Final = 256
"""Graphs of a model. Each takes some hundred kilobytes of the device, and their temporaries share one pool."""

OFTEN: Final = 8
"""Times that lengths have come before they take the place of others that have not come for longest, once there are as many graphs."""


@dataclass(slots=True)
class _Recorded:
    """One list of lengths. batch: at fixed places, whose tokens each run replaces. hidden: where the newest run leaves its states."""

    batch: RaggedBatch
    graph: Graph | None = None
    hidden: Tensor | None = None


class TextGraphs:
    """Hidden states of whole texts; what comes a second time with the same lengths is recorded first.

    Launches take the host longer than a GPU as long as texts are short or a model is small: 4 texts of 32 tokens through bert-base keep
    an H200 busy for 0.42 of the 5.2 ms that launching takes. What there is no memory to record runs as it is. recording: whether
    anything is recorded; None for wherever it is worth it.
    To be called from one CUDA stream; several threads may.
    """

    def __init__(self, model: Transformer, *, recording: bool | None = None, most: int = MOST) -> None:
        self._model = model
        alone = model.collective.size == 1 and model.numerics is Numerics.FASTEST and model.resident
        self._recording = model.device.type == "cuda" and alone if recording is None else recording
        self._most_tokens = LAYER_FLOPS / (2 * max(1, layer_weight_bytes(model.local, Formats(dtype="float32")) // 4))
        self._most = most
        self._met: OrderedDict[tuple[int, ...], int] = OrderedDict()  # lengths without a graph, and how often they came
        self._recorded: OrderedDict[tuple[int, ...], _Recorded] = OrderedDict()  # those used last behind
        self._too_large: OrderedDict[tuple[int, ...], None] = OrderedDict()  # lengths that there was no memory to record
        self._pool: Any = None
        self._lock = threading.Lock()
        self.preparations = 0
        """Lists of lengths that were new, and once more for those that were recorded, or could not be."""

    @torch.inference_mode()
    def states(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, RaggedBatch]:
        """(tokens, hidden) after the final norm, text after text, and the batch that they are of, whose token ids the next call may change.

        Raises ValueError for an empty text.
        """
        lengths = tuple(map(len, rows))
        if not self._recording or sum(lengths) > self._most_tokens:
            return self._plain(rows)
        with self._lock:
            if not self._worth(lengths):
                return self._plain(rows)
            if lengths in self._recorded:
                self._recorded.move_to_end(lengths)
                self._put(rows, self._recorded[lengths].batch.token_ids)
            else:
                made = self._record(rows)
                if made is None:
                    self._release(lengths)
                    return self._plain(rows)
                self._recorded[lengths] = made
            recorded = self._recorded[lengths]
            assert recorded.graph is not None
            recorded.graph()
            assert recorded.hidden is not None
            # A copy: the next run of any of the graphs writes over what the pool holds.
            return recorded.hidden.clone(), recorded.batch

    def _worth(self, lengths: tuple[int, ...]) -> bool:
        """Whether a graph is there, or to be made. What came once has had everything compiled that it needs."""
        if lengths in self._recorded:
            return True
        if lengths in self._too_large:
            return False
        times = self._met.pop(lengths, 0) + 1
        if times > 1 and (len(self._recorded) < self._most or times > OFTEN):
            return True
        self.preparations += times == 1
        self._met[lengths] = times
        if len(self._met) > 4 * self._most:
            self._met.popitem(last=False)
        return False

    def _plain(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, RaggedBatch]:
        batch = prompt_batch(rows, self._model.device)
        return self._model.sweep(batch), batch

    def _record(self, rows: Sequence[Sequence[int]]) -> _Recorded | None:
        """None where there is no memory for the forward while it is recorded."""
        device = self._model.device
        self.preparations += 1
        if len(self._recorded) == self._most:
            synchronise(device)  # the graph that goes may still run
            self._recorded.popitem(last=False)
        if self._pool is None and device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()
        recorded = _Recorded(prompt_batch(rows, device))

        def run() -> None:
            recorded.hidden = self._model.sweep(recorded.batch)

        try:
            recorded.graph = Graph(run, device, self._pool)
        except torch.OutOfMemoryError:
            return None
        return recorded

    def _release(self, lengths: tuple[int, ...]) -> None:
        """After a recording that failed: gives back what it took, and has the same lengths not recorded again.

        The allocator gives up a pool as a whole, once no graph is of it. So all go, and those that come again are recorded again: what the
        failed one has left in the pool may be all that the plain pass needs.
        """
        device = self._model.device
        self._too_large[lengths] = None
        if len(self._too_large) > 4 * self._most:
            self._too_large.popitem(last=False)
        synchronise(device)  # those that go may still run
        self._recorded.clear()
        self._pool = None
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def _put(self, rows: Sequence[Sequence[int]], token_ids: Tensor) -> None:
        fresh = flat_tokens(rows)
        token_ids.copy_(pinned(fresh) if token_ids.is_cuda else fresh, non_blocking=True)
