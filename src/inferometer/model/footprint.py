"""Bytes that a model's weights take on a device, whether a step reads them or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from inferometer.model.formats import Formats
from inferometer.model.parameters import Parameter, head_matrix, parameters
from inferometer.model.shard import Shard
from inferometer.model.spec import ModelSpec

_FIRST = "layers.0."
# Searches for what fits ask the same few models again and again.
_KEPT = 256
_PLAIN = ("feed_forward.router.weight", "feed_forward.experts.up.bias", "feed_forward.experts.down.bias")
"""Of a layer's parameters of two dimensions, those that stay in the activations' type."""
_PARTS = {
    "embedding": "embedding",
    "layers.0.attention": "attention",
    "layers.0.feed_forward": "feed-forward",
    "layers.0.feed_forward.router": "router",
    "layers.0.feed_forward.experts": "experts",
    "layers.0.feed_forward.shared": "shared experts",
    "pooler": "pooler",
    "head": "head",
}
"""By what the names of its parameters begin with, of which the longest decides."""
_NORMS = "norms"


@lru_cache(maxsize=_KEPT)
def resident_weight_bytes(spec: ModelSpec, formats: Formats) -> int:
    """Bytes of all weights on one device. Raises UserError where the shards do not divide the model."""
    return sum(weight_bytes_by_part(spec, formats).values())


@lru_cache(maxsize=_KEPT)
def weight_bytes_by_part(spec: ModelSpec, formats: Formats) -> Mapping[str, int]:
    """The same by what they are: embedding, attention, feed-forward, router, experts, shared experts, pooler, head and norms, of those that
    the model has. A tied head is the embedding's."""
    spec = Shard(count=formats.shards).local(spec)
    found = dict.fromkeys((*_PARTS.values(), _NORMS), 0)
    for parameter, layers in _counted(spec):
        found[_part(parameter)] += _bytes(parameter, spec, formats, layers)
    return MappingProxyType({part: size for part, size in found.items() if size})


@lru_cache(maxsize=_KEPT)
def layer_weight_bytes(spec: ModelSpec, formats: Formats) -> int:
    """Bytes of one layer's weights on one device (of one with experts, if the model has such): the mean, where some layers keep matrices
    as they are.

    Raises UserError where the shards do not divide the model.
    """
    local = Shard(count=formats.shards).local(spec)
    count = max(1, local.layers - (0 if local.experts is None else local.experts.dense_layers))
    return -(-sum(_bytes(parameter, local, formats, count) for parameter in _layer(local)) // count)


def weight_bytes_by_layer(spec: ModelSpec, formats: Formats) -> tuple[int, ...]:
    """Bytes of each layer's weights on one device, ordinary blocks first. Raises UserError as `layer_weight_bytes`."""
    dense = 0 if spec.experts is None else spec.experts.dense_layers
    ordinary = layer_weight_bytes(replace(spec, layers=dense, experts=None, unwindowed_layers=0), formats) if dense else 0
    return (ordinary,) * dense + (layer_weight_bytes(spec, formats),) * (spec.layers - dense)


def _counted(spec: ModelSpec) -> Iterator[tuple[Parameter, int]]:
    """Every kind of parameter, and in how many layers it is; 1 for those of no layer."""
    others = parameters(replace(spec, layers=1, experts=None, unwindowed_layers=0))
    yield from ((parameter, 1) for parameter in others if not _of_layer(parameter))
    dense = spec.layers if spec.experts is None else spec.experts.dense_layers
    if dense:
        yield from ((parameter, dense) for parameter in _layer(replace(spec, experts=None)))
    if dense < spec.layers:
        yield from ((parameter, spec.layers - dense) for parameter in _layer(spec))


def _layer(spec: ModelSpec) -> Iterator[Parameter]:
    """One layer's parameters, of one with experts if the model has such."""
    experts = None if spec.experts is None else replace(spec.experts, dense_layers=0)
    single = replace(spec, layers=1, experts=experts, unwindowed_layers=0)
    return (parameter for parameter in parameters(single) if _of_layer(parameter))


def _of_layer(parameter: Parameter) -> bool:
    return parameter.name.startswith(_FIRST)


def _part(parameter: Parameter) -> str:
    words = parameter.name.split(".")
    beginnings = (".".join(words[:count]) for count in range(len(words), 0, -1))
    return next((_PARTS[name] for name in beginnings if name in _PARTS), _NORMS)


def _bytes(parameter: Parameter, spec: ModelSpec, formats: Formats, layers: int) -> int:
    """Of the parameter in so many layers."""
    name, shape, stored = parameter.name.removeprefix(_FIRST), parameter.shape, formats.matrices
    plain = parameter.size * formats.item_bytes
    if parameter.name == head_matrix(spec):
        return formats.head_bytes(*shape)
    if len(shape) == 1 or not _of_layer(parameter) or name in _PLAIN:
        return layers * plain
    kept = stored.layers_kept(name.removesuffix(".weight"), layers)
    matrices = shape[0] if len(shape) == 3 else 1  # of experts: one of each
    return kept * plain + (layers - kept) * matrices * stored.matrix_bytes(*shape[-2:])
