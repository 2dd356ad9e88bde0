"""Sweeps as CUDA graphs: decode sweeps, one for each batch bucket, and decode with a little of prompts beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from inferometer.engine.cut_graph import CutGraph
from inferometer.engine.facts import Facts
from inferometer.engine.graph import Graph
from inferometer.engine.residency.streamed import StreamedLayers
from inferometer.engine.sampled import Sampled
from inferometer.engine.staging import Shape, Staged, pack_decode, pack_mixed
from inferometer.kernels.token_rows import Places
from inferometer.nn.cache import PagedCache
from inferometer.nn.transformer import Transformer
from inferometer.nn.upload import pinned
from inferometer.schedule.sweep import Share

SHORTEST_CONTEXT = 512
"""Tokens up to which all contexts count as equally long."""

PROMPTS = 8
"""The most prompts of a recorded sweep in which sequences decode too, of which there are many kinds."""

PROMPT_COUNTS = (PROMPTS, 32, 128, 256)
"""Buckets of prompts of a sweep in which none does."""

FEW_TOKENS = 512
"""Prompt tokens up to which a sweep is recorded whatever the model, and runs as one pass."""

PROMPT_TOKENS: tuple[int, ...] = (16, 32, 64, 128, *range(256, 1025, 128), *range(1280, 2049, 256), *range(2560, 8193, 512))
"""Buckets of their tokens."""

LAYER_FLOPS = 3e11
"""Of matrix products a layer, beyond which a GPU is busy for longer than the host takes to launch the layer kernel by kernel: half a
millisecond, as measured beside an H200."""

PATIENCE = 32
"""Where groups come and go: sweeps of a bucket that a larger one's graph serves before it gets its own. To record takes as long as some
ten of them."""


def worth_recording(layer_weights: int) -> int:
    """The most prompt tokens for which sweeps are recorded, for a model whose layers have so many weights."""
    return max(size for size in PROMPT_TOKENS if size <= FEW_TOKENS or 2 * size * layer_weights <= LAYER_FLOPS)


Recorded = Graph | CutGraph


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a graph is recorded for: rows that decode, tokens of prompts behind them, of how many prompts (two tokens each at least), the
    most tokens that a decoding row can hold, and whether it ends with logits or, every row being greedy, with tokens."""

    rows: int
    prompt_tokens: int
    prompts: int
    longest: int
    greedy: bool = False

    @property
    def shape(self) -> Shape:
        """Sizes of its input. A decode sweep's entries of the block table, one a row, are written by the graph."""
        if not self.prompt_tokens:
            return Shape(self.rows, self.rows, self.rows, self.rows)
        sequences = self.rows + self.prompts
        return Shape(self.rows + self.prompt_tokens, sequences, sequences, 0)

    @property
    def query_lengths(self) -> tuple[int, ...]:
        """In name: which prompt has how many of the tokens, the device alone knows."""
        if not self.prompt_tokens:
            return (1,) * self.rows
        if self.prompts <= PROMPTS:
            return (*(1,) * self.rows, self.prompt_tokens - 2 * (self.prompts - 1), *(2,) * (self.prompts - 1))
        # Many are short: the longest decides how many query tokens a program of attention has, and no more.
        each, longer = divmod(self.prompt_tokens, self.prompts)
        return (*(1,) * self.rows, *(each + 1,) * longer, *(each,) * (self.prompts - longer))


class SweepGraphs:
    """Runs sweeps of buckets; what is run a second time is recorded first.

    tokens: int64 (seats,), each seat's newest token, the last seat idle. table: int32 (seats, stride). Rows and tokens are padded, and the
    longest context is rounded up, so that few graphs serve all batches. Graphs hold no memory but the inputs of their bucket and one
    pool of temporaries that they share, since they never run at the same time. most_prompt_tokens: of a sweep, as `worth_recording` says.
    patience: see `_served_by`. rows: the most that end in a token, None for a row a seat and prompts. recording: as in `Graph`.
    """

    def __init__(
        self,
        model: Transformer,
        cache: PagedCache,
        tokens: Tensor,
        table: Tensor,
        pool: Any,
        *,
        most_prompt_tokens: int = FEW_TOKENS,
        patience: int = 0,
        rows: int | None = None,
        recording: torch.cuda.Stream | None = None,
    ) -> None:
        self._recording = recording
        self._most_prompt_tokens = most_prompt_tokens
        self._patience = patience
        self._met: Counter[Bucket] = Counter()
        self._model, self._cache, self._tokens, self._table, self._pool = model, cache, tokens, table, pool
        self._inputs: dict[Shape, Tensor] = {}
        self._graphs: dict[Bucket, Recorded | None] = {}
        self._rows = rows = rows_bucket(tokens.numel() - 1) + PROMPTS if rows is None else rows
        self._logits = model.logits_room(rows)
        self._places = Places.on(model.device, rows)

    @property
    def recorded(self) -> int:
        """Graphs that there are."""
        return sum(graph is not None for graph in self._graphs.values())

    @property
    def preparations(self) -> int:
        """Buckets that were met, and once more for those that are recorded."""
        return len(self._graphs) + self.recorded

    def serves(self, decoding: int, prompts: Many[Share]) -> bool:
        """Whether there is a bucket for a sweep of so many sequences that decode and these shares of others."""
        if not prompts:
            return decoding > 0
        most = PROMPTS if decoding else min(PROMPT_COUNTS[-1], self._rows)
        if len(prompts) > most or sum(share.count for share in prompts) > self._most_prompt_tokens:
            return False
        return not any(share.sequence.request.params.prompt_logprobs for share in prompts)  # those need more than the last logits

    def run(self, decoding: Facts, prompts: Facts) -> tuple[Tensor, Tensor]:
        """Queues a sweep. Returns logits (rows, vocabulary) and the seats of their rows, int64 (rows,), padding behind.

        The first rows are those of the shares that sample, in order; both tensors are good until the next call. For prompts the block
        table holds all pages already.
        """
        shape, staged = self._launch(decoding, prompts, greedy=False)
        return self._logits[: shape.sampled], staged.sampled_seats

    def choose(self, decoding: Facts, prompts: Facts) -> Sampled:
        """Queues a sweep after which every row that samples takes its best token, and puts these at their seats.

        Arguments as for `run`. The tokens, in the same order, are good until the next call.
        """
        shape, _ = self._launch(decoding, prompts, greedy=True)
        sampling = len(decoding) + int(prompts.samples.sum())
        return Sampled.at(self._places.first(shape.sampled), sampling)

    def _launch(self, decoding: Facts, prompts: Facts, *, greedy: bool) -> tuple[Shape, Staged]:
        bucket = self._served_by(self._bucket(decoding, prompts, greedy=greedy))
        idle, size = self._tokens.numel() - 1, self._cache.page_size
        if bucket.prompt_tokens:
            packed = pack_mixed(decoding, prompts, bucket.rows, bucket.prompt_tokens, bucket.prompts, size, idle)
        else:
            packed = pack_decode(decoding, bucket.rows, size, idle)
        inputs = self._static(bucket.shape)
        inputs.copy_(pinned(packed) if inputs.is_cuda else packed, non_blocking=True)
        staged = Staged.of(inputs, bucket.shape)
        graph = self._graphs.get(bucket)
        if graph is None and bucket in self._graphs:
            graph = self._graphs[bucket] = self._record(staged, bucket)
        if graph is None:
            self._graphs[bucket] = None  # once seen: everything it needs is compiled, and the next time it is worth recording
            self._sweep(staged, bucket)
        else:
            graph()
        return bucket.shape, staged

    def _record(self, staged: Staged, bucket: Bucket) -> Recorded:
        model, run = self._model, partial(self._sweep, staged, bucket)
        if isinstance(model.residency, StreamedLayers):
            return CutGraph(run, model, model.residency.placement.streamed_layers, model.device, self._pool)
        return Graph(run, model.device, self._pool, self._recording)

    def _bucket(self, decoding: Facts, prompts: Facts, *, greedy: bool) -> Bucket:
        most = self._table.shape[1] * self._cache.page_size
        longest = _rounded(int(decoding.contexts.max(initial=1)), most)
        if not len(prompts):
            return Bucket(rows_bucket(len(decoding)), 0, 0, longest, greedy)
        # Coarser: a row more costs such a sweep little, and there are more kinds of them.
        rows = min(max(8, 1 << (len(decoding) - 1).bit_length()), rows_bucket(self._tokens.numel() - 1)) if len(decoding) else 0
        count = min(next(size for size in PROMPT_COUNTS if size >= len(prompts)), self._rows - rows)
        tokens = max(int(prompts.counts.sum()), 2 * count)
        return Bucket(rows, next(size for size in PROMPT_TOKENS if size >= tokens), count, longest, greedy)

    def _served_by(self, bucket: Bucket) -> Bucket:
        """The bucket itself once it is recorded or has been met more often than `patience`, else the next larger one that is recorded and
        costs little more.

        Sweeps of groups that come and go one by one are of ever new sizes, each met once or twice.
        """
        if self._graphs.get(bucket) is not None:
            return bucket
        self._met[bucket] += 1
        if self._met[bucket] > self._patience:
            return bucket
        most = max(8, 2 * bucket.rows, bucket.rows + bucket.prompt_tokens // 4)
        larger = [
            other
            for other, graph in self._graphs.items()
            if graph is not None
            and (other.greedy, other.prompt_tokens, other.prompts) == (bucket.greedy, bucket.prompt_tokens, bucket.prompts)
            and bucket.rows <= other.rows <= most
            and bucket.longest <= other.longest
        ]
        return min(larger, key=lambda other: (other.rows, other.longest), default=bucket)

    def _sweep(self, staged: Staged, bucket: Bucket) -> None:
        contexts = (bucket.longest,) * bucket.rows
        if bucket.prompt_tokens:
            contexts += (bucket.prompt_tokens,) * bucket.prompts
        decodes = not bucket.prompt_tokens
        entries = staged.entries(self._table) if decodes else None
        batch = staged.batch(self._tokens, self._table, bucket.query_lengths, contexts, apart=decodes, entries=entries)
        hidden, norm = self._model.unnormed(batch, self._cache)
        if bucket.prompt_tokens:
            hidden = hidden.index_select(0, staged.last)
        rows = bucket.shape.sampled
        if bucket.greedy:
            places = self._places.first(rows).seated(staged.sampled_seats, self._tokens)
            self._model.choose(hidden, places, room=self._logits[:rows], norm=norm)
        else:
            self._model.logits(hidden, out=self._logits[:rows], norm=norm)

    def _static(self, shape: Shape) -> Tensor:
        if shape not in self._inputs:
            self._inputs[shape] = torch.empty(shape.nbytes, dtype=torch.uint8, device=self._model.device)
        return self._inputs[shape]


def rows_bucket(rows: int) -> int:
    """The least number of rows that graphs are made for and that holds `rows`: at most a quarter more, beyond 8."""
    if rows <= 2:
        return rows
    step = max(2, (1 << (rows - 1).bit_length()) // 8)
    return -(-rows // step) * step


def _rounded(context: int, most: int) -> int:
    """Fours of the shortest class: the number only decides into how many parts a context is split."""
    longest = SHORTEST_CONTEXT
    while longest < context:
        longest *= 4
    return min(longest, most)
