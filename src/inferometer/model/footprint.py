"""Bytes that a model's weights take on a device, whether a step reads them or not."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from inferometer.model.formats import Formats, check_shards, local_kv_heads
from inferometer.model.parameters import Parameter, parameters
from inferometer.model.spec import ModelSpec

_FIRST = "layers.0."
# Searches for what fits ask the same few models again and again.
_KEPT = 256
_CUT_BY_INPUT = ("attention.output.weight", "feed_forward.down.weight", "feed_forward.shared.down.weight")


@lru_cache(maxsize=_KEPT)
def resident_weight_bytes(spec: ModelSpec, formats: Formats) -> int:
    """Bytes of all weights on one device. Raises UserError where the shards do not divide the model."""
    check_shards(spec, formats.shards)
    shared = sum(
        _bytes(p, spec, formats) for p in parameters(replace(spec, layers=1, experts=None, unwindowed_layers=0)) if not _of_layer(p)
    )
    dense = spec.layers if spec.experts is None else spec.experts.dense_layers
    held = shared + (dense * _layer_bytes(replace(spec, experts=None), formats) if dense else 0)
    return held + ((spec.layers - dense) * _layer_bytes(spec, formats) if dense < spec.layers else 0)


@lru_cache(maxsize=_KEPT)
def layer_weight_bytes(spec: ModelSpec, formats: Formats) -> int:
    """Bytes of one layer's weights on one device (of one with experts, if the model has such).

    Raises UserError where the shards do not divide the model.
    """
    check_shards(spec, formats.shards)
    return _layer_bytes(spec, formats)


def _layer_bytes(spec: ModelSpec, formats: Formats) -> int:
    experts = None if spec.experts is None else replace(spec.experts, dense_layers=0)
    single = replace(spec, layers=1, experts=experts, unwindowed_layers=0)
    return sum(_bytes(p, spec, formats) for p in parameters(single) if _of_layer(p))


def _of_layer(parameter: Parameter) -> bool:
    return parameter.name.startswith(_FIRST)


def _bytes(parameter: Parameter, spec: ModelSpec, formats: Formats) -> int:
    name, shape, shards = parameter.name.removeprefix(_FIRST), parameter.shape, formats.shards
    if name in ("embedding.token.weight", "head.weight"):
        return -(-shape[0] // shards) * shape[1] * formats.item_bytes
    if name.startswith("feed_forward.experts."):
        return _expert_bytes(name, shape, formats)
    rows = shape[0]
    if name.startswith("attention.qkv."):
        rows = spec.query_size // shards + 2 * local_kv_heads(spec, shards) * spec.head_size
    elif name.startswith(("feed_forward.up.", "feed_forward.shared.up.")):
        rows //= shards
    if len(shape) == 1:
        return rows * formats.item_bytes
    columns = shape[1] // shards if name in _CUT_BY_INPUT else shape[1]
    if _of_layer(parameter) and name != "feed_forward.router.weight":
        return formats.matrices.matrix_bytes(rows, columns)
    return rows * columns * formats.item_bytes


def _expert_bytes(name: str, shape: tuple[int, ...], formats: Formats) -> int:
    """Every device has its part of every expert."""
    count, rows, *columns = shape
    if not columns:
        return count * (rows // formats.shards if name.endswith("up.bias") else rows) * formats.item_bytes
    if name.endswith("up.weight"):
        return count * formats.matrices.matrix_bytes(rows // formats.shards, columns[0])
    return count * formats.matrices.matrix_bytes(rows, columns[0] // formats.shards)
