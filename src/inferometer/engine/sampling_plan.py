"""What a batch's steps have to do: only what some row asked for, as tensors that are made when the batch changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from inferometer.engine import filters
from inferometer.engine.edits import FLOAT32, CountPenalty, Edit, EndBan, LogitBias, RepetitionPenalty, column, positive
from inferometer.engine.history import History
from inferometer.engine.random import signed, uniform
from inferometer.engine.sampling_row import SamplingRow
from inferometer.engine.watermark import Watermark, WatermarkEdit

DRAWS = 64
"""Steps for which random numbers are drawn at once: Philox is some hundred small operations, too many for every step."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a batch; index None means all of them."""

    index: Tensor | None

    @classmethod
    def of(cls, members: Sequence[int], batch: int, device: torch.device) -> Rows:
        """The rows `members`, in ascending order, of a batch of `batch`."""
        return cls(None if len(members) == batch else torch.tensor(members, dtype=torch.int64, device=device))

    def take(self, values: Tensor) -> Tensor:
        """Their part of `values`."""
        return values if self.index is None else values.index_select(0, self.index)

    def put(self, values: Tensor, part: Tensor) -> Tensor:
        """`values` with `part` in their place; `values` may be changed."""
        return part if self.index is None else values.index_copy_(0, self.index, part)


@dataclass(frozen=True, slots=True)
class _Filtered:
    """A filter on the rows that asked for it."""

    rows: Rows
    keep: Callable[[Tensor, Tensor], Tensor]
    parameter: Tensor

    def apply(self, scores: Tensor) -> Tensor:
        return self.rows.put(scores, self.keep(self.rows.take(scores), self.parameter))


@dataclass(frozen=True, slots=True)
class _Temperature:
    """Temperatures of all rows, 1 where a row has none."""

    temperatures: Tensor
    tempered: Tensor

    def apply(self, scores: Tensor) -> Tensor:
        return filters.temperature(scores, self.temperatures, self.tempered)


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The work of the next `lasts` steps (None: until the batch changes).

    edits: what changes the scores of any row. warpers: what changes those of rows that sample. sampled: the rows that draw, None
    if none does; uniforms: their random numbers, float64 [rows that draw, DRAWS], one column a step.
    step: int64 [1] on the device, steps done under this plan; None if nothing depends on it.
    """

    edits: tuple[Edit, ...]
    warpers: tuple[Edit, ...]
    sampled: Rows | None
    everyone_samples: bool
    uniforms: Tensor | None
    step: Tensor | None
    lasts: int | None
    top_counts: tuple[int, ...]

    def scores(self, logits: Tensor) -> Tensor:
        """The processed scores, float32 [rows, vocabulary]; `logits` stay as they are."""
        scores = logits.to(torch.float32)
        if self.edits:
            scores = scores.clone() if scores is logits else scores
            for edit in self.edits:
                scores = edit.apply(scores)
        # After the edits, so that what they send out of range is caught too. Also the copy that protects the caller's logits.
        scores = scores.nan_to_num(nan=-torch.inf, posinf=FLOAT32.max, neginf=-torch.inf)
        for warper in self.warpers:
            scores = warper.apply(scores)
        return scores

    def draws(self) -> Tensor:
        """This step's random numbers, float64 [rows that draw, 1]."""
        assert self.uniforms is not None
        assert self.step is not None
        return self.uniforms.index_select(1, self.step)


def plan(
    rows: Sequence[SamplingRow], generated: Sequence[int], history: History, vocabulary: int, device: torch.device, watermark: Watermark
) -> SamplingPlan:
    """The plan for `rows`, of which each has `generated` so many tokens."""
    step = torch.zeros(1, dtype=torch.int64, device=device)
    sampled = [i for i, row in enumerate(rows) if row.params.samples]
    bans = EndBan.build(rows, generated, vocabulary, step)
    ends = [*([DRAWS] if sampled else []), *([bans.lasts] if bans else [])]
    return SamplingPlan(
        edits=tuple(_edits(rows, history, device, watermark, bans)),
        warpers=tuple(_warpers(rows, sampled, vocabulary, device)),
        sampled=Rows.of(sampled, len(rows), device) if sampled else None,
        everyone_samples=len(sampled) == len(rows),
        uniforms=_uniforms([rows[i].seed for i in sampled], [generated[i] for i in sampled], device) if sampled else None,
        step=step if ends else None,
        lasts=min(ends, default=None),
        top_counts=tuple(min(row.params.top_logprobs, vocabulary) for row in rows),
    )


def _edits(rows: Sequence[SamplingRow], history: History, device: torch.device, watermark: Watermark, bans: EndBan | None) -> list[Edit]:
    edits: list[Edit | None] = []
    if history.previous is not None:
        edits.append(WatermarkEdit(watermark, [i for i, row in enumerate(rows) if row.params.watermark], history.previous))
    if history.seen is not None:
        edits.append(RepetitionPenalty.build(rows, history.seen))
    if history.counts is not None:
        edits.append(CountPenalty.build(rows, history.counts))
    edits += [LogitBias.build(rows, device), bans]
    return [edit for edit in edits if edit is not None]


def _warpers(rows: Sequence[SamplingRow], sampled: Sequence[int], vocabulary: int, device: torch.device) -> list[Edit]:
    warpers: list[Edit] = []
    params = [row.params for row in rows]
    temperatures = [positive(p.temperature) if p.samples else 1.0 for p in params]
    if any(t != 1 for t in temperatures):
        warpers.append(_Temperature(column(temperatures, device), column([float(t != 1) for t in temperatures], device)))
    if members := [i for i in sampled if 0 < params[i].top_k < vocabulary]:
        k = torch.tensor([[params[i].top_k] for i in members], dtype=torch.int64, device=device)
        keep = partial(filters.top_k, largest=max(params[i].top_k for i in members))
        warpers.append(_Filtered(Rows.of(members, len(rows), device), keep, k))
    if members := [i for i in sampled if params[i].top_p < 1]:
        tail = column([1 - params[i].top_p for i in members], device)
        warpers.append(_Filtered(Rows.of(members, len(rows), device), filters.top_p, tail))
    if members := [i for i in sampled if params[i].typical_p < 1]:
        mass = column([params[i].typical_p for i in members], device)
        warpers.append(_Filtered(Rows.of(members, len(rows), device), filters.typical_p, mass))
    return warpers


def _uniforms(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> Tensor:
    keys = torch.tensor([signed(seed) for seed in seeds], dtype=torch.int64, device=device)[:, None]
    starts = torch.tensor(positions, dtype=torch.int64, device=device)[:, None]
    return uniform(keys, starts + torch.arange(DRAWS, device=device))
