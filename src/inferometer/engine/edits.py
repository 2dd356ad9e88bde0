"""Edits of the scores that apply whether a request samples or not: penalties, biases and bans.

Each takes float32 scores [rows, vocabulary] that it may change in place, and returns the result. Where a row did not ask, its
scores come back bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from inferometer.engine.sampling_row import SamplingRow
from inferometer.nn.upload import upload

FLOAT32 = torch.finfo(torch.float32)


class Edit(Protocol):
    """One step of the way from logits to scores."""

    def apply(self, scores: Tensor) -> Tensor:
        """float32 [rows, vocabulary] -> the same shape."""
        ...


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """Divides positive and multiplies negative scores of `seen` tokens (bool [rows, vocabulary]) by `penalties`, float32 [rows, 1]."""

    penalties: Tensor
    seen: Tensor

    @classmethod
    def build(cls, rows: Sequence[SamplingRow], seen: Tensor) -> RepetitionPenalty:
        """The edit for `rows`, 1 where a row asks for none."""
        return cls(column([positive(row.params.repetition_penalty) for row in rows], seen.device), seen)

    def apply(self, scores: Tensor) -> Tensor:
        """float32 [rows, vocabulary], as transformers' RepetitionPenaltyLogitsProcessor; `scores` stay as they are."""
        penalised = torch.where(scores < 0, scores * self.penalties, scores / self.penalties)
        return torch.where(self.seen, penalised, scores)


@dataclass(frozen=True, slots=True)
class CountPenalty:
    """Subtracts count x frequency, and presence once a token has been generated; counts int32 [rows, vocabulary], the rest float32
    [rows, 1].
    """

    frequency: Tensor
    presence: Tensor
    counts: Tensor

    @classmethod
    def build(cls, rows: Sequence[SamplingRow], counts: Tensor) -> CountPenalty:
        """The edit for `rows`, 0 where a row asks for none."""
        frequency = column([bounded(row.params.frequency_penalty) for row in rows], counts.device)
        presence = column([bounded(row.params.presence_penalty) for row in rows], counts.device)
        return cls(frequency, presence, counts)

    def apply(self, scores: Tensor) -> Tensor:
        """float32 [rows, vocabulary], as the OpenAI API defines both penalties; `scores` stay as they are."""
        penalised = scores - self.counts * self.frequency - self.presence
        return torch.where(self.counts > 0, penalised, scores)


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Adds a bias to single tokens. Three tensors of one length: row and token id, int64, and bias, float32; no pair of row and token
    twice.
    """

    rows: Tensor
    token_ids: Tensor
    biases: Tensor

    @classmethod
    def build(cls, rows: Sequence[SamplingRow], device: torch.device) -> LogitBias | None:
        """The edit for `rows`, None if none of them has a bias."""
        entries = [(i, token_id, bias) for i, row in enumerate(rows) for token_id, bias in (row.params.logit_bias or {}).items()]
        if not entries:
            return None
        at, token_ids, biases = zip(*entries, strict=True)
        places = upload((at, token_ids), torch.int64, device)
        return cls(places[0], places[1], upload([bounded(bias) for bias in biases], torch.float32, device))

    def apply(self, scores: Tensor) -> Tensor:
        """Changes `scores`, float32 [rows, vocabulary], in place, and returns them."""
        biased = scores[self.rows, self.token_ids] + self.biases
        return scores.index_put_((self.rows, self.token_ids), biased)


@dataclass(frozen=True, slots=True)
class EndBan:
    """Bans end tokens for some steps more. Tensors of one length, int64: row, token id, steps left when the edit was built.

    step: int64 [1] on the device, how many steps have passed since. lasts: after so many steps no ban is left.
    """

    rows: Tensor
    token_ids: Tensor
    remaining: Tensor
    step: Tensor
    lasts: int

    @classmethod
    def build(cls, rows: Sequence[SamplingRow], generated: Sequence[int], vocabulary: int, step: Tensor) -> EndBan | None:
        """The edit for `rows` that have `generated` so many tokens each, None if all may end now."""
        entries = [
            (i, token_id, row.params.min_new_tokens - count)
            for i, (row, count) in enumerate(zip(rows, generated, strict=True))
            if row.params.min_new_tokens > count
            for token_id in row.end_token_ids
            if 0 <= token_id < vocabulary
        ]
        if not entries:
            return None
        table = upload([(row, token_id, min(left, 2**62)) for row, token_id, left in entries], torch.int64, step.device)
        return cls(table[:, 0], table[:, 1], table[:, 2], step, max(left for _, _, left in entries))

    def apply(self, scores: Tensor) -> Tensor:
        """Changes `scores`, float32 [rows, vocabulary], in place, and returns them."""
        banned = torch.where(self.step < self.remaining, -math.inf, scores[self.rows, self.token_ids])
        return scores.index_put_((self.rows, self.token_ids), banned)


def column(values: Sequence[float], device: torch.device) -> Tensor:
    """One float32 a row, [rows, 1]."""
    return upload(values, torch.float32, device)[:, None]


def bounded(value: float) -> float:
    """The finite float32 nearest to `value`."""
    return min(max(value, FLOAT32.min), FLOAT32.max)


def positive(value: float) -> float:
    """The normal positive float32 nearest to `value`."""
    return min(max(value, FLOAT32.tiny), FLOAT32.max)
