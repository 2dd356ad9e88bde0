"""The transformer: one torch module that runs every spec over ragged batches."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from inferometer.errors import ModelError
from inferometer.kernels.skinny_choice import Launches
from inferometer.model.spec import LearnedPositions, ModelSpec, Rotary
from inferometer.nn.attention import sweep_context
from inferometer.nn.batch import RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.layers import Layer, Norm
from inferometer.nn.linear import Linear, project
from inferometer.nn.residency import AllResident, Residency
from inferometer.nn.rotary import RotaryEmbedding
from inferometer.nn.segments import attention_kernels
from inferometer.nn.upload import upload


class Table(nn.Module):
    """An embedding table (entries, width); left uninitialised for the loader."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(entries, width), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 (tokens,) -> (tokens, width)."""
        return functional.embedding(ids, self.weight)


class Embedding(nn.Module):
    """Tokens, positions and token types summed, projected and normed as the spec says."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.token = Table(spec.vocabulary, spec.embedding)
        self.projection = Linear(spec.embedding, spec.hidden, bias=False) if spec.embedding != spec.hidden else None
        self.position: Table | None = None
        self.offset = 0
        if isinstance(spec.positions, LearnedPositions):
            self.offset = spec.positions.offset
            self.position = Table(spec.positions.count + self.offset, spec.hidden)
        self.token_type = Table(spec.token_types, spec.hidden) if spec.token_types else None
        self.norm = Norm(spec) if spec.embedding_norm else None

    def forward(self, batch: RaggedBatch) -> Tensor:
        """-> (tokens, hidden)."""
        x: Tensor = self.token(batch.token_ids)
        if self.projection is not None:
            x = self.projection(x)
        if self.position is not None:
            x = x + self.position(batch.positions + self.offset)
        if self.token_type is not None:
            kinds = batch.token_types
            x = x + (self.token_type.weight[0] if kinds is None else self.token_type(kinds))
        return x if self.norm is None else self.norm(x)


class Head(nn.Module):
    """From hidden states to logits; the matrix is the embedding's where tied."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.projection = Linear(spec.hidden, spec.embedding, bias=False) if spec.embedding != spec.hidden else None
        self.weight = None if spec.tied_head else nn.Parameter(torch.empty(spec.vocabulary, spec.embedding), requires_grad=False)
        self.launches: Launches = {}

    def forward(self, hidden: Tensor, token_table: Tensor) -> Tensor:
        """(rows, hidden) -> (rows, vocabulary)."""
        if self.projection is not None:
            hidden = self.projection(hidden)
        return project(hidden, token_table if self.weight is None else self.weight, launches=self.launches)


class Transformer(nn.Module):
    """A decoder or encoder after `spec`. Its state_dict holds exactly the tensors of model.parameters, uninitialised.

    Memory is taken at construction on `device` in `dtype`; raises torch.OutOfMemoryError where there is too little, ModelError for a
    spec that is only estimated.
    """

    def __init__(self, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        if spec.unrun is not None:
            raise ModelError(f"{spec.name} is estimated only: {spec.unrun} cannot be run; use a model of another family")
        self.spec = spec
        with torch.device("meta"):
            self.embedding = Embedding(spec)
            self.layers = nn.ModuleList(Layer(spec, i) for i in range(spec.layers))
            self.final_norm = Norm(spec) if spec.final_norm else None
            self.pooler = Linear(spec.hidden, spec.hidden, bias=True) if spec.pooler else None
            self.head = None if spec.encoder else Head(spec)
        self.to(dtype).to_empty(device=device)
        self.rotary = RotaryEmbedding(spec.positions, spec.head_size, device) if isinstance(spec.positions, Rotary) else None
        self.residency: Residency = AllResident()
        self.eval()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        return self.embedding.token.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where inputs are expected."""
        return self.embedding.token.weight.device

    def pack(self) -> None:
        """Puts the layers' matrices into the layout that the CPU's matrix instructions read, in place of the plain one.

        From then on `state_dict` holds only the shapes of what was packed. Does nothing on other devices and in other dtypes.
        """
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack()

    def forward(self, batch: RaggedBatch, cache: PagedCache | None = None, logits: Literal["last", "all"] = "last") -> Tensor:
        """Logits after each sequence's last token (sequences, vocabulary), or after every token (tokens, vocabulary)."""
        hidden = self.sweep(batch, cache)
        return self.logits(hidden if logits == "all" else hidden[batch.last_tokens])

    def sweep(self, batch: RaggedBatch, cache: PagedCache | None = None) -> Tensor:
        """One pass through the layers: hidden states (tokens, hidden) after the final norm.

        Keys and values are written to `cache` at the places that the batch's rows name. Without a cache every sequence must be whole.
        """
        rotation = None if self.rotary is None else self.rotary.tables(batch.positions, batch.rotary_lengths, self.dtype)
        x: Tensor = self.embedding(batch)
        delta: Tensor | None = None
        sweep = sweep_context(batch, self.spec, cache, rotation, x)
        with attention_kernels(x.device):
            for index, layer in enumerate(self.layers):
                self.residency.acquire(index)
                x, delta = layer(x, delta, sweep)
                self.residency.release(index)
        if self.final_norm is None:
            return x if delta is None else x + delta
        out: Tensor = self.final_norm(x, delta)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, hidden) -> (rows, vocabulary), in the model's dtype. Raises ValueError for an encoder, which has no head."""
        if self.head is None:
            raise ValueError("an encoder has no logits")
        out: Tensor = self.head(hidden, self.embedding.token.weight)
        return out

    def log_probabilities(self, hidden: Tensor, targets: Tensor, *, chunk: int = 256) -> Tensor:
        """float32 (rows,): log-probability of int64 `targets` (rows,) after each hidden state.

        `chunk` rows of logits exist at a time, so that a long prompt needs no (tokens, vocabulary) matrix.
        """
        parts = []
        for states, wanted in zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True):
            parts.append(-functional.cross_entropy(self.logits(states).float(), wanted, reduction="none"))
        return torch.cat(parts)

    def pooled(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        """(sequences, hidden): the pooler's view of each sequence's first token. Raises ValueError without a pooler."""
        if self.pooler is None:
            raise ValueError("this model has no pooler")
        first = batch.last_tokens - upload(batch.query_lengths, torch.int64, hidden.device) + 1
        return torch.tanh(self.pooler(hidden[first]))
