"""A decode step of the first layers of a model, to be timed: what a launch costs between those that run before and behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from inferometer.engine.device_clock import median_seconds
from inferometer.engine.graph import Graph
from inferometer.engine.sizes import PAGE_SIZE
from inferometer.kernels.token_rows import Places
from inferometer.model.spec import LearnedPositions
from inferometer.nn.attention import sweep_context
from inferometer.nn.batch import CachedRows, RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.collective import ALONE, Collective, Unlinked
from inferometer.nn.linear import Linear
from inferometer.nn.stream import Stream
from inferometer.nn.transformer import Transformer

CONTEXT = 512
"""Tokens of every row: enough that attention cuts the contexts of few rows into parts, as it does in most steps."""
FEWEST_LAYERS = 8
"""So that the seam between two steps is a small part of one."""
CACHES = 3
"""What the weights of the layers come to at least, in L2 caches, so that none is found there from the step before."""
REPEATS = 9


class DecodeChain:
    """Embedding, layers and greedy head for `rows` rows, launched as an engine's recorded step is.

    All rows read the same pages: keys come from the cache, which no choice of a map's launch changes. Takes memory for those; raises
    torch.OutOfMemoryError where there is too little. Of a model that ranks share it is this rank's part, without the others.
    """

    def __init__(self, model: Transformer, rows: int, cache_bytes: int) -> None:
        spec, device = model.local, model.device
        self._model = model
        ranks = model.collective
        self._ranks: Collective = ALONE if ranks.size == 1 else Unlinked(ranks.rank, ranks.size)
        self._layers = list(model.layers)[: layers_to_time(model, cache_bytes)]
        context = min(CONTEXT, spec.positions.count) if isinstance(spec.positions, LearnedPositions) else CONTEXT
        pages = -(-context // PAGE_SIZE)
        fewer = replace(spec, layers=len(self._layers), unwindowed_layers=min(spec.unwindowed_layers, len(self._layers)))
        self._cache = PagedCache(fewer, pages, PAGE_SIZE, device, model.dtype)
        self._places = Places.on(device, rows)
        self._room = model.logits_room(rows)
        row = torch.arange(rows, device=device)
        self._batch = RaggedBatch(
            token_ids=row % spec.vocabulary,
            positions=torch.full_like(row, context - 1),
            query_lengths=(1,) * rows,
            context_lengths=(context,) * rows,
            rotary_lengths=torch.full_like(row, context),
            rows=CachedRows(
                table=torch.arange(pages, dtype=torch.int32, device=device).repeat(rows, 1),
                seats=row.int(),
                contexts=torch.full_like(row, context).int(),
                starts=torch.arange(rows + 1, dtype=torch.int32, device=device),
                places=torch.full_like(row, context - 1),
                apart=True,
            ),
        )

    def run(self) -> None:
        """One step."""
        model, batch = self._model, self._batch
        rotation = None if model.rotary is None else model.rotary.tables(batch.positions, batch.rotary_lengths, model.dtype)
        x: Tensor = model.embedding(batch, self._ranks)
        sweep = sweep_context(batch, model.local, self._cache, rotation, x, model.numerics, self._ranks)
        stream = Stream(x)
        for layer in self._layers:
            stream = layer(stream, sweep)
        norm = None if model.final_norm is None else model.final_norm.weights
        if norm is not None and stream.delta is not None:
            stream, norm = Stream(stream.normed(norm)), None
        assert model.head is not None
        model.head.choose(stream.whole, model.embedding.token.matrix, self._places, self._room, norm, ranks=self._ranks)

    def seconds(self) -> float:
        """What the step takes with the launches that its maps have now. Raises what a launch raises that does not fit the card."""
        return duration(self.run, self._model.device)


def layers_to_time(model: Transformer, cache_bytes: int) -> int:
    """How many of the first layers: their weights outgrow the cache, if there are as many."""
    weights = sum(linear.weight_bytes for linear in model.layers[0].modules() if isinstance(linear, Linear)) if len(model.layers) else 1
    return min(len(model.layers), max(FEWEST_LAYERS, -(-CACHES * cache_bytes // max(1, weights))))


def duration(run: Callable[[], None], device: torch.device) -> float:
    """Seconds of what is recorded as a graph: the median of a few times."""
    run()  # compiled before it is recorded
    graph = Graph(run, device, torch.cuda.graph_pool_handle())
    graph()
    return median_seconds(graph, device, repeats=REPEATS)
