"""Bytes that a model's weights take on a device, whether a step reads them or not."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from inferometer.model.formats import Formats
from inferometer.model.parameters import Parameter, head_matrix, parameters
from inferometer.model.shard import Shard
from inferometer.model.spec import ModelSpec

_FIRST = "layers.0."
# Searches for what fits ask the same few models again and again.
_KEPT = 256
_PLAIN = ("feed_forward.router.weight", "feed_forward.experts.up.bias", "feed_forward.experts.down.bias")
"""Of a layer's parameters of two dimensions, those that stay in the activations' type."""


@lru_cache(maxsize=_KEPT)
def resident_weight_bytes(spec: ModelSpec, formats: Formats) -> int:
    """Bytes of all weights on one device. Raises UserError where the shards do not divide the model."""
    spec = Shard(count=formats.shards).local(spec)
    head = head_matrix(spec)
    others = (p for p in parameters(replace(spec, layers=1, experts=None, unwindowed_layers=0)) if not _of_layer(p))
    shared = sum(formats.head_bytes(*p.shape) if p.name == head else _bytes(p, formats) for p in others)
    dense = spec.layers if spec.experts is None else spec.experts.dense_layers
    held = shared + (dense * _layer_bytes(replace(spec, experts=None), formats) if dense else 0)
    return held + ((spec.layers - dense) * _layer_bytes(spec, formats) if dense < spec.layers else 0)


@lru_cache(maxsize=_KEPT)
def layer_weight_bytes(spec: ModelSpec, formats: Formats) -> int:
    """Bytes of one layer's weights on one device (of one with experts, if the model has such).

    Raises UserError where the shards do not divide the model.
    """
    return _layer_bytes(Shard(count=formats.shards).local(spec), formats)


def _layer_bytes(spec: ModelSpec, formats: Formats) -> int:
    experts = None if spec.experts is None else replace(spec.experts, dense_layers=0)
    single = replace(spec, layers=1, experts=experts, unwindowed_layers=0)
    return sum(_bytes(p, formats) for p in parameters(single) if _of_layer(p))


def _of_layer(parameter: Parameter) -> bool:
    return parameter.name.startswith(_FIRST)


def _bytes(parameter: Parameter, formats: Formats) -> int:
    name, shape = parameter.name.removeprefix(_FIRST), parameter.shape
    if len(shape) == 3:  # of experts: one matrix of each
        return shape[0] * formats.matrices.matrix_bytes(shape[1], shape[2])
    if len(shape) == 2 and _of_layer(parameter) and name not in _PLAIN:
        return formats.matrices.matrix_bytes(shape[0], shape[1])
    return parameter.size * formats.item_bytes
