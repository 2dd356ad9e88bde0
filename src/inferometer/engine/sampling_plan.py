"""What a batch's steps have to do: only what some row asked for, as tensors that are made when the batch changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from inferometer.engine import filters
from inferometer.engine.choice import clean
from inferometer.engine.draws import DRAWS, Draws
from inferometer.engine.edits import CountPenalty, Edit, EndBan, LogitBias, RepetitionPenalty
from inferometer.engine.history import History
from inferometer.engine.sampling_row import SamplingRow
from inferometer.engine.sampling_table import SamplingTable
from inferometer.engine.watermark import Watermark, WatermarkEdit
from inferometer.nn.upload import upload

LARGEST_K = 1024
"""The largest top-k that a captured sampler serves."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a batch; index None means all of them."""

    index: Tensor | None

    @classmethod
    def of(cls, members: Tensor, device: torch.device) -> Rows:
        """The rows where `members`, bool [rows] on the CPU, is true."""
        return cls(None if bool(members.all()) else upload(members.nonzero().squeeze(-1), torch.int64, device))

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
class Signature:
    """What a captured sampler has to do for all its rows; the parameters of each row are data.

    largest_k: a power of two that no row's top-k exceeds (or the vocabulary, if that is less), 0 without top-k.
    """

    samples: bool
    temperature: bool
    largest_k: int
    top_p: bool
    typical_p: bool

    @classmethod
    def of(cls, table: SamplingTable, vocabulary: int) -> Signature | None:
        """What the rows of `table`, on the CPU, need together; None if a top-k is too large to be captured."""
        k = int(table.top_k.max())
        if k > LARGEST_K:
            return None
        rounded = min(1 << (k - 1).bit_length(), vocabulary) if k else 0
        return cls(True, bool(table.tempered.any()), rounded, bool((table.tails >= 0).any()), bool((table.masses <= 1).any()))


GREEDY = Signature(samples=False, temperature=False, largest_k=0, top_p=False, typical_p=False)


@dataclass(slots=True)
class SamplingPlan:
    """The work of the next `lasts` steps (None: until the batch changes).

    edits: what changes the scores of any row. warpers: what changes those of rows that sample. sampled: the rows that draw, None
    if none does. table: all rows' parameters and random numbers on the device, None if no row draws.
    signature: what a captured sampler would have to do; None if only `sample` can carry the plan out, as when there are edits or
    likeliest tokens to report.
    done: steps done under this plan. step: the same on the device, int64 [1]; None if no edit depends on it.
    """

    edits: tuple[Edit, ...]
    warpers: tuple[Edit, ...]
    sampled: Rows | None
    table: SamplingTable | None
    signature: Signature | None
    step: Tensor | None
    lasts: int | None
    top_counts: tuple[int, ...]
    done: int = 0

    @property
    def spent(self) -> bool:
        """Whether the next step needs a new plan."""
        return self.lasts is not None and self.done >= self.lasts

    @property
    def everyone_samples(self) -> bool:
        """Whether no row is greedy."""
        return self.sampled is not None and self.sampled.index is None

    def advance(self) -> None:
        """Another step is done."""
        self.done += 1
        if self.step is not None:
            self.step.add_(1)

    def scores(self, logits: Tensor) -> Tensor:
        """The processed scores, float32 [rows, vocabulary]; `logits` stay as they are."""
        scores = logits.to(torch.float32)
        if self.edits:
            scores = scores.clone() if scores is logits else scores
            for edit in self.edits:
                scores = edit.apply(scores)
        # After the edits, so that what they send out of range is caught too. Also the copy that protects the caller's logits.
        scores = clean(scores)
        for warper in self.warpers:
            scores = warper.apply(scores)
        return scores

    def draws(self) -> Tensor:
        """This step's random numbers, float64 [rows that draw, 1]."""
        assert self.table is not None
        assert self.sampled is not None
        return self.sampled.take(self.table.uniforms[:, self.done : self.done + 1])


def plan(
    rows: Sequence[SamplingRow],
    generated: Sequence[int],
    parameters: Tensor,
    draws: Draws,
    history: History,
    vocabulary: int,
    device: torch.device,
    watermark: Watermark,
) -> SamplingPlan:
    """The plan for `rows`, of which each has `generated` so many tokens. parameters, draws: theirs, on the CPU."""
    step = torch.zeros(1, dtype=torch.int64, device=device)
    bans = EndBan.build(rows, generated, vocabulary, step)
    edits = tuple(_edits(rows, history, device, watermark, bans))
    top_counts = tuple([min(row.params.top_logprobs, vocabulary) for row in rows])
    lasts = None if bans is None else bans.lasts
    plain = not edits and not any(top_counts)
    samples = parameters[:, 0] != 0
    if not bool(samples.any()):
        return SamplingPlan(edits, (), None, None, GREEDY if plain else None, step if bans else None, lasts, top_counts)
    here = SamplingTable.build(parameters, draws, generated)
    table = here.to(device)
    return SamplingPlan(
        edits=edits,
        warpers=tuple(_warpers(here, table, device)),
        sampled=Rows.of(samples, device),
        table=table,
        signature=Signature.of(here, vocabulary) if plain else None,
        step=step if bans else None,
        lasts=DRAWS if lasts is None else min(DRAWS, lasts),
        top_counts=top_counts,
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


def _warpers(here: SamplingTable, table: SamplingTable, device: torch.device) -> list[Edit]:
    """The filters that some row of `here`, the table on the CPU, asks for."""
    warpers: list[Edit] = []
    if bool(here.tempered.any()):
        warpers.append(_Temperature(table.temperatures, table.tempered))
    largest = int(here.top_k.max())
    filtering: tuple[tuple[Tensor, Callable[[Tensor, Tensor], Tensor], Tensor], ...] = (
        (here.top_k > 0, partial(filters.top_k, largest=largest), table.top_k),
        (here.tails >= 0, filters.top_p, table.tails),
        (here.masses <= 1, filters.typical_p, table.masses),
    )
    for asks, keep, parameter in filtering:
        if bool(asks.any()):
            rows = Rows.of(asks.squeeze(-1), device)
            warpers.append(_Filtered(rows, keep, rows.take(parameter)))
    return warpers
