"""From tokens to hidden states: the tables of tokens, positions and token types."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from inferometer.kernels.embed import Positions, Tokens, TokenTable, embed
from inferometer.kernels.head_matrix import Matrix
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.spec import LearnedPositions, ModelSpec
from inferometer.nn.batch import RaggedBatch
from inferometer.nn.collective import ALONE, Collective
from inferometer.nn.layers import Norm
from inferometer.nn.linear import Linear


class Table(nn.Module):
    """An embedding table (entries, width); left uninitialised for the loader.

    quant: the table in 8 bits, of which `weight` is then only the shape and the type of activations.
    """

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(entries, width), requires_grad=False)
        self.quant: QuantWeight | None = None

    @property
    def matrix(self) -> Matrix:
        """What is held."""
        return self.weight if self.quant is None else self.quant

    @property
    def lookup(self) -> TokenTable:
        """As the launch that looks tokens up takes it."""
        return TokenTable(self.matrix, self.weight.dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 (tokens,) -> (tokens, width)."""
        return functional.embedding(ids, self.weight)


class Embedding(nn.Module):
    """Tokens, positions and token types summed, projected and normed as the spec says.

    spec: of this rank's part. held: the tokens whose rows the table has, before those that pad it; None for all.
    """

    def __init__(self, spec: ModelSpec, held: range | None = None) -> None:
        super().__init__()
        self.held = held
        self.token = Table(spec.vocabulary, spec.embedding)
        self.projection = Linear(spec.embedding, spec.hidden, bias=False) if spec.embedding != spec.hidden else None
        self.position: Table | None = None
        self.offset = 0
        if isinstance(spec.positions, LearnedPositions):
            self.offset = spec.positions.offset
            self.position = Table(spec.positions.count + self.offset, spec.hidden)
        self.token_type = Table(spec.token_types, spec.hidden) if spec.token_types else None
        self.norm = Norm(spec) if spec.embedding_norm else None

    def forward(self, batch: RaggedBatch, ranks: Collective = ALONE) -> Tensor:
        """-> (tokens, hidden). What the batch's block table has yet to hold is written too."""
        entries = None if batch.rows is None else batch.rows.entries
        positions = None if self.position is None else Positions(self.position.weight, batch.positions, self.offset)
        if ranks.size == 1:
            if self.projection is None and batch.token_types is None:
                kind = None if self.token_type is None else self.token_type.weight[0]
                norm = None if self.norm is None else self.norm.weights
                return embed(batch.tokens, self.token.lookup, positions, kind, norm, entries)
            x = embed(batch.tokens, self.token.lookup, entries=entries)
        else:
            tokens = Tokens(batch.token_ids, batch.newest, self.held)
            if self.projection is None and self.token_type is None:
                # Rank 0 alone adds positions, in the launch that looks tokens up: every number is then a sum of at most two.
                x = ranks.all_reduce(embed(tokens, self.token.lookup, None if ranks.rank else positions, entries=entries))
                return x if self.norm is None else self.norm(x)
            x = ranks.all_reduce(embed(tokens, self.token.lookup, entries=entries))
        if self.projection is not None:
            x = self.projection(x)
        if self.position is not None:
            x = x + self.position(batch.positions + self.offset)
        if self.token_type is not None:
            kinds = batch.token_types
            x = x + (self.token_type.weight[0] if kinds is None else self.token_type(kinds))
        return x if self.norm is None else self.norm(x)
