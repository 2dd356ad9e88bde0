"""The transformer: one torch module that runs every spec over ragged batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from inferometer.errors import ModelError
from inferometer.kernels.norm import NormWeights
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.kernels.token_rows import Places
from inferometer.model.parameters import parameters
from inferometer.model.scored_rows import scored_rows
from inferometer.model.shard import Shard
from inferometer.model.spec import ModelSpec, Rotary
from inferometer.nn.attention import sweep_context
from inferometer.nn.batch import RaggedBatch
from inferometer.nn.cache import PagedCache
from inferometer.nn.collective import ALONE, Collective
from inferometer.nn.compiled_model import CompiledModel
from inferometer.nn.embedding import Embedding, Table
from inferometer.nn.flat_layer import FlatLayer
from inferometer.nn.formats.layout import Layouts
from inferometer.nn.head import Head, padded_rows
from inferometer.nn.layers import Layer, Norm
from inferometer.nn.linear import Linear
from inferometer.nn.numerics import Numerics
from inferometer.nn.product_choice import ProductChoice
from inferometer.nn.residency import AllResident, LayerMemory, Residency
from inferometer.nn.rotary import RotaryEmbedding
from inferometer.nn.segments import attention_kernels
from inferometer.nn.stream import Stream
from inferometer.nn.upload import upload

HOLDERS = (Linear, Table, Head)
"""Modules whose weight may be in few bits."""


class Transformer(nn.Module):
    """A decoder or encoder after `spec`. Its state_dict holds exactly the tensors of model.parameters, uninitialised.

    numerics: how sums are taken; a model of invariant numerics is packed (`pack`) before it runs.
    quantised: which matrices are kept in few bits, by name, and how as a whole; their parameters are then shapes without numbers.
    collective: the ranks that share the model, of which each makes one of these in its own process and calls the same methods in the same
    order. What a method returns is then equal to the bit on all of them.
    layer_memory: where layers that are not always on the device are while they run; `residency` is then to be set before a sweep.

    spec: of the whole model. local: of this rank's part, after which parameters and caches are made.

    Memory is taken at construction on `device` in `dtype`; raises torch.OutOfMemoryError where there is too little, ModelError for a
    spec that is only estimated, UserError where the ranks do not divide the model.
    """

    def __init__(
        self,
        spec: ModelSpec,
        device: torch.device,
        dtype: torch.dtype,
        numerics: Numerics = Numerics.FASTEST,
        quantised: Layouts | None = None,
        collective: Collective = ALONE,
        layer_memory: LayerMemory | None = None,
    ) -> None:
        super().__init__()
        if spec.unrun is not None:
            raise ModelError(f"{spec.name} is estimated only: {spec.unrun} cannot be run; use a model of another family")
        self.spec = spec
        self.collective = collective
        shard = Shard(collective.rank, collective.size)
        self.local = local = shard.local(spec)
        held = None if shard.count == 1 else shard.tokens(spec)
        self.numerics = numerics
        self._ready = numerics is Numerics.FASTEST
        with torch.device("meta"):
            self.embedding = Embedding(local, held)
            self.layers = nn.ModuleList(Layer(local, i) for i in range(spec.layers))
            self.final_norm = Norm(spec) if spec.final_norm else None
            self.pooler = Linear(spec.hidden, spec.hidden, bias=True) if spec.pooler else None
            self.head = None if spec.encoder else Head(local, held, spec.vocabulary)
        self.to(dtype)
        self.layouts: Layouts = quantised or {}
        self._allocate(device, layer_memory)
        self.rotary = RotaryEmbedding(spec.positions, spec.head_size, device) if isinstance(spec.positions, Rotary) else None
        self.residency: Residency = AllResident()
        self.compiled: CompiledModel | None = None
        self.eval()

    def _allocate(self, device: torch.device, layer_memory: LayerMemory | None) -> None:
        """Takes the memory of all parameters. Raises KeyError for the name of a matrix that is none of the model's."""
        shapes = {parameter.name: parameter.shape for parameter in parameters(self.spec)} if self.layouts else {}
        for name, layout in self.layouts.items():
            module = self.get_submodule(name.removesuffix(".weight"))
            assert isinstance(module, HOLDERS)
            assert module.weight is not None
            outputs, inputs = module.weight.shape
            module.quant = layout.part(shapes[name][1], inputs).empty(outputs, inputs, "meta")
        flat = [FlatLayer.of(layer) for layer in self.layers]
        memory: Sequence[Tensor | None] = [None] * len(flat)
        if layer_memory is not None:
            memory = layer_memory([each.nbytes for each in flat])
        placed: set[nn.Module] = set()
        for layer, form, lent in zip(self.layers, flat, memory, strict=True):
            if lent is not None:
                form.bind(layer, lent)
                placed.update(layer.modules())
        for module in self.modules():
            if module not in placed:
                _materialise(module, device)

    @property
    def quantised(self) -> dict[str, QuantWeight]:
        """The matrices in few bits, by the names of their parameters."""
        maps = ((name, module) for name, module in self.named_modules() if isinstance(module, HOLDERS))
        return {f"{name}.weight": module.quant for name, module in maps if module.quant is not None}

    @property
    def weight_bytes(self) -> int:
        """Bytes that all weights take."""
        quantised = self.quantised
        plain = sum(parameter.nbytes for name, parameter in self.named_parameters() if name not in quantised)
        return plain + sum(weight.nbytes for weight in quantised.values())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        return self.embedding.token.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where inputs are expected."""
        return self.embedding.token.matrix.device

    @property
    def resident(self) -> bool:
        """Whether every layer is always on the device."""
        return isinstance(self.residency, AllResident)

    def pack(self) -> None:
        """Puts the layers' matrices into the layout that the CPU's matrix instructions read, in place of the plain one, and readies the
        kernels for sweeps on a CPU. To be called once the weights are there.

        From then on `state_dict` holds only the shapes of what was packed. Does nothing on other devices, and for layers that come and go.
        With invariant numerics it also finds out, on any device, how products can be taken so that no row's bits depend on others.
        """
        for module in self.modules():
            if isinstance(module, Linear) and self.resident:
                module.pack()
        if self.numerics is Numerics.INVARIANT:
            self._choose_products()
            self._ready = True
        else:
            self.compiled = CompiledModel.of(self)

    def _choose_products(self) -> None:
        choice = ProductChoice(self.device, self.dtype)
        for module in self.modules():
            if isinstance(module, Linear):
                module.product = choice.product(module.weight, module.bias, module.packed, module.quant)
            elif isinstance(module, Head):
                matrix = module.matrix(self.embedding.token.matrix)
                module.product = choice.product_with(matrix) if matrix.shape[0] else None
                module.choosing_in_whole_rows = True

    def forward(self, batch: RaggedBatch, cache: PagedCache | None = None, logits: Literal["last", "all"] = "last") -> Tensor:
        """Logits after each sequence's last token (sequences, vocabulary), or after every token (tokens, vocabulary)."""
        hidden = self.sweep(batch, cache)
        return self.logits(hidden if logits == "all" else hidden[batch.last_tokens])

    def sweep(self, batch: RaggedBatch, cache: PagedCache | None = None) -> Tensor:
        """One pass through the layers: hidden states (tokens, hidden) after the final norm.

        Keys and values are written to `cache` at the places that the batch's rows name. Without a cache every sequence must be whole.
        """
        hidden, norm = self.unnormed(batch, cache)
        return hidden if norm is None else norm.of(hidden)

    def unnormed(self, batch: RaggedBatch, cache: PagedCache | None = None) -> tuple[Tensor, NormWeights | None]:
        """As `sweep`, (tokens, hidden), with the final norm still to come, which the head's launch may take; None where it is done or there
        is none. Raises RuntimeError for invariant numerics that are not packed yet.
        """
        if not self._ready:
            raise RuntimeError("a model of invariant numerics runs once its weights are loaded and `pack` has been called")
        rotation = None if self.rotary is None else self.rotary.tables(batch.positions, batch.rotary_lengths, self.dtype)
        x: Tensor = self.embedding(batch, self.collective)
        if self.compiled is not None and cache is not None and self.compiled.serves(batch, cache):
            return self.compiled.sweep(x, batch, cache, rotation, self.collective), None
        sweep = sweep_context(batch, self.local, cache, rotation, x, self.numerics, self.collective)
        stream = Stream(x)
        del x  # the layers hold what they need
        with attention_kernels(self.device):
            for index, layer in enumerate(self.layers):
                self.residency.acquire(index)
                stream = layer(stream, sweep)
                self.residency.release(index)
        if self.final_norm is None:
            return self.collective.kept(stream.whole), None
        if stream.delta is None:
            return stream.x, self.final_norm.weights
        return self.collective.kept(stream.normed(self.final_norm.weights)), None

    def logits(self, hidden: Tensor, out: Tensor | None = None, norm: NormWeights | None = None) -> Tensor:
        """(rows, hidden) -> (rows, vocabulary), in the model's dtype. Raises ValueError for an encoder, which has no head.

        out: where they are to be, as from `logits_room`. norm: what the states are still to be normed by, as from `unnormed`.
        """
        if self.head is None:
            raise ValueError("an encoder has no logits")
        found: Tensor = self.head(hidden, self.embedding.token.matrix, out, self.compiled, norm, self.collective)
        return found

    def logits_room(self, rows: int) -> Tensor:
        """Uninitialised (rows, vocabulary) that logits can be put into."""
        return padded_rows(torch.empty(rows, 0, dtype=self.dtype, device=self.device), self.spec.vocabulary)

    def choose(self, hidden: Tensor, places: Places, room: Tensor | None = None, norm: NormWeights | None = None) -> None:
        """The best token after each hidden state (rows, hidden) and its log-probability. Raises ValueError for an encoder.

        room: for the logits, as from `logits_room`, where they have to be written. norm: as in `logits`.
        """
        if self.head is None:
            raise ValueError("an encoder has no logits")
        self.head.choose(hidden, self.embedding.token.matrix, places, room, norm, self.compiled, self.collective)

    def log_probabilities(self, hidden: Tensor, targets: Tensor, *, chunk: int | None = None) -> Tensor:
        """float32 (rows,): log-probability of int64 `targets` (rows,) after each hidden state.

        `chunk` rows of logits exist at a time, so that a long prompt needs no (tokens, vocabulary) matrix; None for as many as the device
        computes while the next are launched. Raises ValueError for an encoder.
        """
        if self.head is None:
            raise ValueError("an encoder has no logits")
        if chunk is None:
            chunk = 256 if self.device.type == "cpu" else scored_rows(self.spec.vocabulary)
        return self.head.log_probabilities(hidden, targets, self.embedding.token.matrix, self.compiled, self.collective, chunk)

    def pooled(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        """(sequences, hidden): the pooler's view of each sequence's first token. Raises ValueError without a pooler."""
        if self.pooler is None:
            raise ValueError("this model has no pooler")
        first = batch.last_tokens - upload(batch.query_lengths, torch.int64, hidden.device) + 1
        return torch.tanh(self.pooler(hidden[first]))


def _materialise(module: nn.Module, device: torch.device) -> None:
    """Gives a module's own weights memory."""
    quant = module.quant if isinstance(module, HOLDERS) else None
    if isinstance(module, HOLDERS) and quant is not None:
        module.quant = quant.empty_on(device)
    for name, parameter in module.named_parameters(recurse=False):
        if not (name == "weight" and quant is not None):
            # empty_like of a meta tensor is torch's Python, which imports sympy: a second of every start.
            empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            setattr(module, name, nn.Parameter(empty, requires_grad=False))
