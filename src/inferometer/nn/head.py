"""The head: from hidden states to logits, or straight to the best token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from inferometer.kernels.head_choice import choose_best
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.skinny import skinny_triton
from inferometer.kernels.skinny_choice import Launches, launch_for
from inferometer.kernels.token_choice import choose
from inferometer.kernels.token_rows import Places
from inferometer.model.spec import ModelSpec
from inferometer.nn.few_tokens import FewTokens
from inferometer.nn.invariant import Product
from inferometer.nn.linear import Linear


class Head(nn.Module):
    """From hidden states to logits; the matrix is the embedding's where tied."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.projection = Linear(spec.hidden, spec.embedding, bias=False) if spec.embedding != spec.hidden else None
        self.weight = None if spec.tied_head else nn.Parameter(torch.empty(spec.vocabulary, spec.embedding), requires_grad=False)
        self.launches: Launches = {}
        self.product: Product | None = None

    def forward(
        self,
        hidden: Tensor,
        token_table: Tensor,
        out: Tensor | None = None,
        few: FewTokens | None = None,
        norm: NormWeights | None = None,
    ) -> Tensor:
        """(rows, hidden) -> (rows, vocabulary), in `out` if that is given, which is for GPUs. norm: by which rows are normed first."""
        states, norm = self._states(hidden, norm)
        if few is not None and few.projects(states):
            return few.project(states if norm is None else norm.of(states))
        return self._logits(states, norm, self._weight(token_table), out)

    def choose(self, hidden: Tensor, token_table: Tensor, places: Places, room: Tensor | None, norm: NormWeights | None = None) -> None:
        """The best token after each hidden state (rows, hidden). Logits of few rows on a GPU are never written. norm: as in `forward`."""
        (states, norm), weight = self._states(hidden, norm), self._weight(token_table)
        launch = launch_for(states, weight, self.launches) if self.product is None else None
        if launch is None:
            choose(self._logits(states, norm, weight, room), places)
        else:
            choose_best(states, weight, places, launch, norm)

    def _states(self, hidden: Tensor, norm: NormWeights | None) -> tuple[Tensor, NormWeights | None]:
        """What the head's matrix reads, and the norm that is still to come."""
        if self.projection is None:
            return hidden, norm
        found = None if norm is None else self.projection.normed(hidden, norm)
        if found is None:
            found = self.projection(hidden if norm is None else norm.of(hidden))
        return found, None

    def _weight(self, token_table: Tensor) -> Tensor:
        return token_table if self.weight is None else self.weight

    def _logits(self, states: Tensor, norm: NormWeights | None, weight: Tensor, out: Tensor | None) -> Tensor:
        launch = launch_for(states, weight, self.launches) if self.product is None else None
        if norm is not None and (launch is None or not launch.whole):
            states, norm = norm.of(states), None
        if self.product is not None:
            logits = self.product(states)
            return logits if out is None else out.copy_(logits)
        if launch is not None:
            return skinny_triton(states, weight, norm=norm, launch=launch, out=out)
        if out is None:
            if not states.is_cuda:
                return functional.linear(states, weight)
            out = padded_rows(states, weight.shape[0])
        return torch.mm(states, weight.T, out=out)


def padded_rows(like: Tensor, width: int, rows: int | None = None) -> Tensor:
    """(rows, width), uninitialised, whose rows begin at multiples of 128 bytes; as many as `like` has unless told, of its type.

    Whatever the vocabulary, matrix libraries and kernels then store and load 16 bytes at a time: cuBLAS is three times as slow else.
    """
    unit = 128 // like.element_size()
    stride = -(-width // unit) * unit
    return torch.empty(like.shape[0] if rows is None else rows, stride, dtype=like.dtype, device=like.device)[:, :width]
