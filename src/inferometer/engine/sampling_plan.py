"""What a batch's steps have to do: only what some row asked for, as tensors that are made when the batch changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inferometer.engine.draws import DRAWS, Draws
from inferometer.engine.edits import CountPenalty, Edit, EndBan, LogitBias, RepetitionPenalty
from inferometer.engine.history import History
from inferometer.engine.sampling_row import SamplingRow
from inferometer.engine.sampling_table import SamplingTable
from inferometer.engine.watermark import Watermark, WatermarkEdit
from inferometer.nn.upload import upload

LARGEST_K = 1024
"""The largest top-k that a captured sampler serves: where the kernels do not run, the k best are selected."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a sampler has to do for all its rows; the parameters of each row are data.

    largest_k: a power of two that no row's top-k exceeds (or the vocabulary, if that is less), 0 without top-k.
    """

    samples: bool
    temperature: bool
    largest_k: int
    top_p: bool
    typical_p: bool

    @classmethod
    def of(cls, table: SamplingTable, vocabulary: int) -> Signature:
        """What the rows of `table`, on the CPU, need together."""
        k = int(table.top_k.max())
        rounded = min(1 << (k - 1).bit_length(), vocabulary) if k else 0
        return cls(True, bool((table.temperatures != 1).any()), rounded, bool((table.tails >= 0).any()), bool((table.masses <= 1).any()))

    @property
    def filters(self) -> bool:
        """Whether tokens are left out."""
        return bool(self.largest_k) or self.top_p or self.typical_p


GREEDY = Signature(samples=False, temperature=False, largest_k=0, top_p=False, typical_p=False)


@dataclass(slots=True)
class SamplingPlan:
    """The work of the next `lasts` steps (None: until the batch changes).

    edits: what changes the scores of any row. needs: what the rows that sample ask for together. table: all rows' parameters and random
    numbers on the device, None if no row draws.
    unprocessed: the rows whose log-probabilities are to be those of the scores before all of that, bool [rows, 1] on the device; None
    if there are none.
    signature: what a captured sampler would have to do; None if only `sample` can carry the plan out, as when there are edits,
    unprocessed log-probabilities or likeliest tokens to report.
    done: steps done under this plan. step: the same on the device, int64 [1]; None if no edit depends on it.
    """

    edits: tuple[Edit, ...]
    needs: Signature
    table: SamplingTable | None
    signature: Signature | None
    step: Tensor | None
    lasts: int | None
    top_counts: tuple[int, ...]
    unprocessed: Tensor | None = None
    done: int = 0

    @property
    def spent(self) -> bool:
        """Whether the next step needs a new plan."""
        return self.lasts is not None and self.done >= self.lasts

    def advance(self) -> None:
        """Another step is done."""
        self.done += 1
        if self.step is not None:
            self.step.add_(1)

    def edited(self, logits: Tensor) -> Tensor:
        """`logits` themselves, which stay as they are; edited ones in float32."""
        if not self.edits:
            return logits
        scores = logits.to(torch.float32, copy=True)
        for edit in self.edits:
            scores = edit.apply(scores)
        return scores


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
    """The plan for `rows`, of which each has `generated` so many tokens.

    parameters: theirs, int64 [rows, PARAMETERS], as `sampling_table` has them. draws: their random numbers. Both on the CPU.
    """
    step = torch.zeros(1, dtype=torch.int64, device=device)
    bans = EndBan.build(rows, generated, vocabulary, step)
    edits = tuple(_edits(rows, history, device, watermark, bans))
    top_counts = tuple([min(row.params.top_logprobs, vocabulary) for row in rows])
    lasts = None if bans is None else bans.lasts
    own = [row.unprocessed_logprobs for row in rows]
    unprocessed = upload(own, torch.bool, device)[:, None] if any(own) else None
    plain = not edits and not any(top_counts) and unprocessed is None
    samples = parameters[:, 0] != 0
    if not bool(samples.any()):
        return SamplingPlan(edits, GREEDY, None, GREEDY if plain else None, step if bans else None, lasts, top_counts, unprocessed)
    here = SamplingTable.build(parameters, draws, generated)
    needs = Signature.of(here, vocabulary)
    return SamplingPlan(
        edits=edits,
        needs=needs,
        table=here.to(device),
        signature=needs if plain and needs.largest_k <= LARGEST_K else None,
        step=step if bans else None,
        lasts=DRAWS if lasts is None else min(DRAWS, lasts),
        top_counts=top_counts,
        unprocessed=unprocessed,
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
