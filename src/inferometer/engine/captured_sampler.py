"""The sampler in the form of a CUDA graph: fixed places for everything that it reads and writes, the same work at every step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from inferometer.engine.choice import take
from inferometer.engine.sampled import Sampled
from inferometer.engine.sampling_plan import SamplingPlan, Signature
from inferometer.engine.sampling_table import SamplingTable
from inferometer.kernels.token_rows import Places


class CapturedSampler:
    """The sampler of up to `rows` rows whose plans have one signature.

    Every step: `load(plan)`, then one `run(logits)` or one replay of a graph of it, then `sampled(rows)`. A graph reads the logits that
    it was recorded with. replay: that graph, set by whoever records it, so that it lives and goes with the places that it works on.
    """

    def __init__(self, rows: int, signature: Signature, device: torch.device) -> None:
        self.rows = rows
        self.signature = signature
        self.places = Places.on(device, rows)
        self.replay: Callable[[], None] | None = None
        self._neutral = SamplingTable.neutral(1, device).words
        self._table = SamplingTable.neutral(rows if signature.samples else 0, device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._plan: SamplingPlan | None = None
        self._next = 0
        self._loaded = 0

    def seat(self, seats: Tensor, newest: Tensor) -> None:
        """Where a run puts its tokens besides: seats, int64 [rows] at one place for good, of newest, int64 [seats]."""
        self.places = self.places.seated(seats, newest)

    def load(self, plan: SamplingPlan) -> None:
        """Makes the coming run one of `plan`, at the step that it is at; does nothing where the last run leads there.

        Copies queue behind the runs before and nothing waits. Raises ValueError for a plan of another signature or more rows.
        """
        rows = len(plan.top_counts)
        if plan.signature != self.signature or rows > self.rows:
            raise ValueError(f"a plan for {rows} rows and {plan.signature} in a sampler of {self.rows} rows for {self.signature}")
        if plan.table is None:
            return
        if plan is not self._plan or plan.done != self._next:
            self._table.words[:rows].copy_(plan.table.words)
            if rows < self._loaded:
                self._table.words[rows : self._loaded].copy_(self._neutral.expand(self._loaded - rows, -1))
            self._step.fill_(plan.done)
            self._plan, self._loaded = plan, rows
        self._next = plan.done + 1

    def run(self, logits: Tensor) -> None:
        """One step: logits [rows, vocabulary] in, tokens at `places`. Rows beyond the plan's get some token."""
        take(logits, self.places, self.signature, self._table if self.signature.samples else None, self._step)
        if self.signature.samples:
            self._step.add_(1)

    def sampled(self, rows: int) -> Sampled:
        """What the newest run chose for the first `rows` rows; good until the next one. `fetch` it before that is launched."""
        return Sampled.at(self.places, rows)


class SamplerGraphs:
    """Captured samplers by rows and signature, made when they are first asked for; of more than `most` the least recently used goes."""

    def __init__(self, device: torch.device, most: int = 64) -> None:
        self.device = device
        self.most = most
        self._held: OrderedDict[tuple[int, Signature], CapturedSampler] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def preparations(self) -> int:
        """Samplers that are held, and once more for those that are recorded."""
        return len(self._held) + sum(sampler.replay is not None for sampler in self._held.values())

    def sampler_for(self, rows: int, plan: SamplingPlan) -> CapturedSampler | None:
        """The sampler of `rows` rows that can carry out `plan`, None if only `sample` can."""
        if plan.signature is None:
            return None
        key = (rows, plan.signature)
        sampler = self._held.get(key)
        if sampler is None:
            sampler = self._held[key] = CapturedSampler(rows, plan.signature, self.device)
            if len(self._held) > self.most:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return sampler
