"""The head: from hidden states to logits, or straight to the best token."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from inferometer.kernels.head_choice import choose_best
from inferometer.kernels.head_matrix import Matrix, head_launch_for, head_product
from inferometer.kernels.log_softmax import log_softmax
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.quant_widened import widened
from inferometer.kernels.rank_peaks import choose_among, product_peaks, row_peaks
from inferometer.kernels.skinny_choice import Launches
from inferometer.kernels.skinny_launch import MOST_ROWS, Tiling
from inferometer.kernels.support import usable
from inferometer.kernels.token_choice import LOWEST, choose
from inferometer.kernels.token_rows import Places
from inferometer.model.spec import ModelSpec
from inferometer.nn.collective import ALONE, Collective
from inferometer.nn.compiled_model import CompiledModel
from inferometer.nn.formats.product import multiply
from inferometer.nn.invariant import Product
from inferometer.nn.linear import Linear

UNIT: Final = 64
"""Outputs."""


class Head(nn.Module):
    """From hidden states to logits; the matrix is the embedding's where tied.

    quant: a matrix of its own in 8 bits, of which `weight` is then only the shape.
    spec: of this rank's part. held: the tokens whose rows the matrix has, before those that pad it; None for all. vocabulary: tokens of all
    ranks; None for those of the spec.
    """

    def __init__(self, spec: ModelSpec, held: range | None = None, vocabulary: int | None = None) -> None:
        super().__init__()
        self.projection = Linear(spec.hidden, spec.embedding, bias=False) if spec.embedding != spec.hidden else None
        self.weight = None if spec.tied_head else nn.Parameter(torch.empty(spec.vocabulary, spec.embedding), requires_grad=False)
        self.quant: QuantWeight | None = None
        self.held = range(spec.vocabulary) if held is None else held
        self.vocabulary = spec.vocabulary if vocabulary is None else vocabulary
        self.launches: Launches = {}
        self.product: Product | None = None
        self.choosing_in_whole_rows = False
        """Whether ranks choose from all logits: shares of a sum of exponentials, added up, differ in a last bit from the sum that rows
        beside others which sample are given. For invariant numerics."""

    def forward(
        self,
        hidden: Tensor,
        token_table: Matrix,
        out: Tensor | None = None,
        compiled: CompiledModel | None = None,
        norm: NormWeights | None = None,
        ranks: Collective = ALONE,
    ) -> Tensor:
        """(rows, hidden) -> (rows, vocabulary), in `out` if that is given, which is for GPUs. norm: by which rows are normed first."""
        if ranks.size == 1:
            return self._logits(hidden, token_table, out, compiled, norm)
        share = self._whole(token_table).shape[0]
        own = self._share_of_logits(hidden, token_table, share, compiled, norm)
        return ranks.gather(own, out)[:, : self.vocabulary]

    def choose(
        self,
        hidden: Tensor,
        token_table: Matrix,
        places: Places,
        room: Tensor | None,
        norm: NormWeights | None = None,
        compiled: CompiledModel | None = None,
        ranks: Collective = ALONE,
    ) -> None:
        """The best token after each hidden state (rows, hidden). Logits of few rows on a GPU are never written. norm: as in `forward`."""
        if ranks.size > 1 and self.choosing_in_whole_rows:
            choose(self(hidden, token_table, room, compiled, norm, ranks), places)
            return
        if ranks.size > 1:
            choose_among(ranks.gather(self._peaks(hidden, token_table, compiled, norm)), places)
            return
        (states, norm), weight = self._states(hidden, norm), self.matrix(token_table)
        launch = self._launch(states, weight)
        if launch is None or len(states) > MOST_ROWS:
            choose(self._product(states, norm, weight, room), places)
        else:
            choose_best(states, weight, places, launch, norm)

    def log_probabilities(
        self, hidden: Tensor, targets: Tensor, token_table: Matrix, compiled: CompiledModel | None, ranks: Collective, chunk: int
    ) -> Tensor:
        """float32 (rows,): log-probability of int64 `targets` (rows,) after each hidden state (rows, hidden), of whose logits `chunk` rows
        exist at a time.
        """
        chunks = (self._logits(states, token_table, None, compiled, None) for states in torch.split(hidden, chunk))
        if ranks.size == 1 and not usable(hidden.device):
            wanted = torch.split(targets[:, None], chunk)
            return torch.cat([log_softmax(logits.float()).gather(1, each)[:, 0] for logits, each in zip(chunks, wanted, strict=True)])
        # The logits are read once as they are, while the cache of the device holds a chunk of them: no row of float32 is written.
        ours = (targets >= self.held.start) & (targets < self.held.stop)
        places = torch.split((targets - self.held.start).masked_fill(~ours, 0)[:, None], chunk)
        peaks, found = [], []
        for logits, at in zip(chunks, places, strict=True):
            peaks.append(row_peaks(logits, self.held.start))
            found.append(logits.gather(1, at)[:, 0] if logits.shape[1] else logits.new_zeros(len(at)))
        # Of those that have not the target, nothing: its rank's score is what the others' zeros are added to.
        own = torch.cat(found).float().masked_fill(~ours, 0.0)
        told = torch.cat((torch.cat(peaks), own.view(torch.int32)[:, None]), 1)
        tops, _, sums, scores = ranks.gather(told).view(len(targets), -1, 4).unbind(2)
        bests = tops.contiguous().view(torch.float32)
        highest = bests.amax(1)
        mass = (sums.contiguous().view(torch.float32) * (bests - highest.clamp(min=LOWEST)[:, None]).exp()).sum(1)
        return scores.contiguous().view(torch.float32).sum(1) - highest - mass.log()

    def matrix(self, token_table: Matrix) -> Matrix:
        """The rows of tokens, (tokens, embedding)."""
        whole = self._whole(token_table)
        return whole[: len(self.held)] if isinstance(whole, Tensor) else whole.rows(0, len(self.held))

    def _whole(self, token_table: Matrix) -> Matrix:
        """With the rows that pad it."""
        return self.quant or (token_table if self.weight is None else self.weight)

    def _logits(
        self, hidden: Tensor, token_table: Matrix, out: Tensor | None, compiled: CompiledModel | None, norm: NormWeights | None
    ) -> Tensor:
        """Logits of the tokens that are held."""
        states, norm = self._states(hidden, norm)
        if compiled is not None and compiled.projects(states):
            return compiled.project(states if norm is None else norm.of(states))
        return self._product(states, norm, self.matrix(token_table), out)

    def _share_of_logits(
        self, hidden: Tensor, token_table: Matrix, share: int, compiled: CompiledModel | None, norm: NormWeights | None
    ) -> Tensor:
        """Logits of the tokens that are held, and behind them what stands for none: (rows, share)."""
        held = len(self.held)
        if hidden.is_cuda and held:
            room = padded_rows(hidden, share)
            self._logits(hidden, token_table, room[:, :held], compiled, norm)
            return room
        own = self._logits(hidden, token_table, None, compiled, norm)
        return own if held == share else functional.pad(own, (0, share - held))

    def _peaks(self, hidden: Tensor, token_table: Matrix, compiled: CompiledModel | None, norm: NormWeights | None) -> Tensor:
        """As `row_peaks` of the logits of the tokens that are held."""
        (states, norm), weight, first = self._states(hidden, norm), self.matrix(token_table), self.held.start
        launch = self._launch(states, weight)
        if launch is not None and len(states) <= MOST_ROWS:
            return product_peaks(states, weight, first, launch, norm)
        if compiled is not None and compiled.projects(states):
            return row_peaks(compiled.project(states if norm is None else norm.of(states)), first)
        return row_peaks(self._product(states, norm, weight, None), first)

    def _states(self, hidden: Tensor, norm: NormWeights | None) -> tuple[Tensor, NormWeights | None]:
        """What the head's matrix reads, and the norm that is still to come."""
        if self.projection is None:
            return hidden, norm
        found = None if norm is None else self.projection.normed(hidden, norm)
        if found is None:
            found = self.projection(hidden if norm is None else norm.of(hidden))
        return found, None

    def _launch(self, states: Tensor, weight: Matrix) -> Tiling | None:
        return head_launch_for(states, weight, self.launches) if self.product is None and weight.shape[0] else None

    def _product(self, states: Tensor, norm: NormWeights | None, weight: Matrix, out: Tensor | None) -> Tensor:
        if not weight.shape[0]:  # a rank that has padding alone
            return states.new_empty(states.shape[0], 0)
        launch = self._launch(states, weight)
        if launch is not None:
            return head_product(states, weight, launch, norm, out)
        if norm is not None:
            states = norm.of(states)
        if self.product is not None:
            logits = self.product(states)
            return logits if out is None else out.copy_(logits)
        if out is None:
            if not states.is_cuda:
                return functional.linear(states, weight) if isinstance(weight, Tensor) else multiply(states, weight, None)
            out = padded_rows(states, weight.shape[0])
        return product_in_units(states, weight if isinstance(weight, Tensor) else widened(weight, states.dtype), out)


def product_in_units(states: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """states weight^T, (rows, vocabulary), in `out`, whose rows begin as those of `padded_rows` do.

    The outputs behind the last whole unit are a product of their own: matrix libraries have their newest kernels for whole units alone
    (1024 rows, 50258 outputs of 2048 inputs in bfloat16, H200: 0.78 ms at once, 0.30 ms in two).
    """
    whole = weight.shape[0] // UNIT * UNIT
    if whole:
        torch.mm(states, weight[:whole].T, out=out[:, :whole])
    if whole < weight.shape[0]:
        torch.mm(states, weight[whole:].T, out=out[:, whole:])
    return out


def padded_rows(like: Tensor, width: int, rows: int | None = None) -> Tensor:
    """(rows, width), uninitialised, whose rows begin at multiples of 128 bytes; as many as `like` has unless told, of its type.

    Whatever the vocabulary, matrix libraries and kernels then store and load 16 bytes at a time: cuBLAS is three times as slow else.
    """
    unit = 128 // like.element_size()
    stride = -(-width // unit) * unit
    return torch.empty(like.shape[0] if rows is None else rows, stride, dtype=like.dtype, device=like.device)[:, :width]
