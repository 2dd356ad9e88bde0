"""The parameters of a transformer: names and shapes, from the spec alone.

The torch module holds exactly these tensors under exactly these names (a test compares them), the loader fills them, and the
inventory of the work counts their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from inferometer.model.spec import Latent, LearnedPositions, ModelSpec


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of the model. A matrix is (outputs, inputs), as torch's linear layers store it."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def parameters(spec: ModelSpec) -> tuple[Parameter, ...]:
    """Every parameter of `spec` in the order in which a token meets it. A tied head appears once, as the embedding."""
    return tuple(_parameters(spec))


def parameter_count(spec: ModelSpec) -> int:
    """Number of trained elements, a tied head counted once."""
    return sum(p.size for p in parameters(spec))


def head_matrix(spec: ModelSpec) -> str | None:
    """The name of the matrix that the head multiplies by; None for an encoder, which has no head."""
    return None if spec.encoder else "embedding.token.weight" if spec.tied_head else "head.weight"


def attention_matrices(spec: ModelSpec) -> tuple[str, ...]:
    """The matrices of a layer's attention, by their names in the layer."""
    single = _layer(spec, "layer", mixed=False)
    return tuple(p.name.removeprefix("layer.").removesuffix(".weight") for p in single if ".attention." in p.name and len(p.shape) == 2)


def _parameters(spec: ModelSpec) -> Iterator[Parameter]:
    yield Parameter("embedding.token.weight", (spec.vocabulary, spec.embedding))
    if spec.embedding != spec.hidden:
        yield Parameter("embedding.projection.weight", (spec.hidden, spec.embedding))
    if isinstance(spec.positions, LearnedPositions):
        yield Parameter("embedding.position.weight", (spec.positions.count + spec.positions.offset, spec.hidden))
    if spec.token_types:
        yield Parameter("embedding.token_type.weight", (spec.token_types, spec.hidden))
    if spec.embedding_norm:
        yield from _norm(spec, "embedding.norm")
    for i in range(spec.layers):
        yield from _layer(spec, f"layers.{i}", mixed=spec.experts is not None and i >= spec.experts.dense_layers)
    if spec.final_norm:
        yield from _norm(spec, "final_norm")
    if spec.pooler:
        yield from _linear("pooler", spec.hidden, spec.hidden, bias=True)
    if not spec.encoder:
        if spec.embedding != spec.hidden:
            yield Parameter("head.projection.weight", (spec.embedding, spec.hidden))
        if not spec.tied_head:
            yield Parameter("head.weight", (spec.vocabulary, spec.embedding))


def _layer(spec: ModelSpec, prefix: str, *, mixed: bool) -> Iterator[Parameter]:
    yield from _norm(spec, f"{prefix}.attention_norm")
    if spec.latent is None:
        yield from _linear(f"{prefix}.attention.qkv", spec.query_size + 2 * spec.kv_size, spec.hidden, bias=spec.qkv_bias)
    else:
        yield from _latent(spec, spec.latent, f"{prefix}.attention")
    if spec.query_key_norm:
        yield Parameter(f"{prefix}.attention.query_norm.weight", (spec.head_size,))
        yield Parameter(f"{prefix}.attention.key_norm.weight", (spec.head_size,))
    yield from _linear(f"{prefix}.attention.output", spec.hidden, spec.attended_size, bias=spec.output_bias)
    if spec.layer_norms == 4:
        yield from _norm(spec, f"{prefix}.attention_output_norm")
    if spec.layer_norms > 1:
        yield from _norm(spec, f"{prefix}.feed_forward_norm")
    if mixed:
        yield from _experts(spec, f"{prefix}.feed_forward")
    else:
        up = spec.feed_forward * (2 if spec.gated else 1)
        yield from _linear(f"{prefix}.feed_forward.up", up, spec.hidden, bias=spec.feed_forward_bias)
        yield from _linear(f"{prefix}.feed_forward.down", spec.hidden, spec.feed_forward, bias=spec.feed_forward_bias)
    if spec.layer_norms == 4:
        yield from _norm(spec, f"{prefix}.feed_forward_output_norm")


def _latent(spec: ModelSpec, latent: Latent, prefix: str) -> Iterator[Parameter]:
    """Queries, and what keys and values are made of and by: down to a vector, which is normed, and up to all heads."""
    if latent.query_rank is None:
        yield Parameter(f"{prefix}.query.weight", (spec.query_size, spec.hidden))
    else:
        yield Parameter(f"{prefix}.query_down.weight", (latent.query_rank, spec.hidden))
        yield Parameter(f"{prefix}.query_down_norm.weight", (latent.query_rank,))
        yield Parameter(f"{prefix}.query_up.weight", (spec.query_size, latent.query_rank))
    yield Parameter(f"{prefix}.latent_down.weight", (latent.cached, spec.hidden))
    yield Parameter(f"{prefix}.latent_down_norm.weight", (latent.rank,))
    yield Parameter(f"{prefix}.latent_up.weight", (spec.heads * (latent.unrotated + latent.values), latent.rank))


def _experts(spec: ModelSpec, prefix: str) -> Iterator[Parameter]:
    """One matrix of all experts, stacked, as (experts, outputs, inputs)."""
    experts, halves = spec.experts, 2 if spec.gated else 1
    assert experts is not None, "only a layer of experts has them"
    yield Parameter(f"{prefix}.router.weight", (experts.count, spec.hidden))
    yield Parameter(f"{prefix}.experts.up.weight", (experts.count, halves * experts.feed_forward, spec.hidden))
    yield Parameter(f"{prefix}.experts.down.weight", (experts.count, spec.hidden, experts.feed_forward))
    if spec.feed_forward_bias:
        yield Parameter(f"{prefix}.experts.up.bias", (experts.count, halves * experts.feed_forward))
        yield Parameter(f"{prefix}.experts.down.bias", (experts.count, spec.hidden))
    if experts.shared:
        yield from _linear(f"{prefix}.shared.up", halves * experts.shared, spec.hidden, bias=False)
        yield from _linear(f"{prefix}.shared.down", spec.hidden, experts.shared, bias=False)


def _linear(name: str, outputs: int, inputs: int, *, bias: bool) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (outputs, inputs))
    if bias:
        yield Parameter(f"{name}.bias", (outputs,))


def _norm(spec: ModelSpec, name: str) -> Iterator[Parameter]:
    if spec.norm_affine:
        yield Parameter(f"{name}.weight", (spec.hidden,))
        if spec.norm == "layer":
            yield Parameter(f"{name}.bias", (spec.hidden,))
