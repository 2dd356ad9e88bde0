"""Decode sweeps as CUDA graphs, one for each batch bucket."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import torch
from torch import Tensor

from inferometer.engine.graph import Graph
from inferometer.engine.staging import Shape, Staged, pack_decode
from inferometer.nn.cache import PagedCache
from inferometer.nn.transformer import Transformer
from inferometer.schedule.sweep import Share

_SHORTEST = 512
"""Tokens up to which all contexts count as equally long."""


class DecodeGraphs:
    """Runs sweeps of one token a sequence; what is run a second time is recorded first.

    tokens: int64 (seats,), each seat's newest token, the last seat idle. table: int32 (seats, stride). Rows are padded to a bucket, and
    the longest context is rounded up, so that few graphs serve all batches. Graphs hold no memory but the inputs of their bucket and
    one pool of temporaries that they share, since they never run at the same time.
    """

    def __init__(self, model: Transformer, cache: PagedCache, tokens: Tensor, table: Tensor, pool: Any) -> None:
        self._model, self._cache, self._tokens, self._table, self._pool = model, cache, tokens, table, pool
        self._inputs: dict[int, Tensor] = {}
        self._graphs: dict[tuple[int, int], Graph | None] = {}
        self._logits = torch.empty(bucket(tokens.numel() - 1), model.spec.vocabulary, device=model.device, dtype=model.dtype)

    @property
    def recorded(self) -> int:
        """Graphs that there are."""
        return sum(graph is not None for graph in self._graphs.values())

    def run(self, shares: Many[Share]) -> tuple[Tensor, Tensor]:
        """Queues the sweep. Returns logits (bucket, vocabulary) and the seats of their rows, int64 (bucket,).

        The first rows are the shares', in order; both tensors are good until the next call.
        """
        rows = bucket(len(shares))
        longest = _rounded(max(share.start for share in shares) + 1, self._table.shape[1] * self._cache.page_size)
        inputs = self._static(rows)
        packed = pack_decode(shares, rows, self._cache.page_size, self._tokens.numel() - 1)
        inputs.copy_(packed.pin_memory() if inputs.is_cuda else packed, non_blocking=True)
        staged = Staged.of(inputs, Shape(rows, rows, rows, rows))
        key = (rows, longest)
        graph = self._graphs.get(key)
        if graph is None and key in self._graphs:
            graph = self._graphs[key] = Graph(lambda: self._sweep(staged, rows, longest), self._model.device, self._pool)
        if graph is None:
            self._graphs[key] = None  # once seen: everything it needs is compiled, and the next time it is worth recording
            self._sweep(staged, rows, longest)
        else:
            graph()
        return self._logits[:rows], staged.sampled_seats

    def _sweep(self, staged: Staged, rows: int, longest: int) -> None:
        staged.write_entries(self._table)
        batch = staged.batch(self._tokens, self._table, (1,) * rows, (longest,) * rows)
        self._logits[:rows].copy_(self._model.logits(self._model.sweep(batch, self._cache)))

    def _static(self, rows: int) -> Tensor:
        if rows not in self._inputs:
            self._inputs[rows] = torch.empty(Shape(rows, rows, rows, rows).nbytes, dtype=torch.uint8, device=self._model.device)
        return self._inputs[rows]


def bucket(rows: int) -> int:
    """The least number of rows that graphs are made for and that holds `rows`: at most a quarter more, beyond 8."""
    if rows <= 2:
        return rows
    step = max(2, (1 << (rows - 1).bit_length()) // 8)
    return -(-rows // step) * step


def _rounded(context: int, most: int) -> int:
    """Fours of the shortest class: the number only decides into how many parts a context is split."""
    longest = _SHORTEST
    while longest < context:
        longest *= 4
    return min(longest, most)
