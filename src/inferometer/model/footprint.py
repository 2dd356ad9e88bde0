"""Bytes that a model's weights take on a device, whether a step reads them or not."""

from __future__ import annotations

from dataclasses import replace

from inferometer.model.formats import Formats, check_shards, local_kv_heads
from inferometer.model.parameters import Parameter, parameters
from inferometer.model.spec import ModelSpec

_FIRST = "layers.0."


def resident_weight_bytes(spec: ModelSpec, formats: Formats) -> int:
    """Bytes of all weights on one device. Raises UserError where the shards do not divide the model."""
    return layer_weight_bytes(spec, formats) * spec.layers + _shared_bytes(spec, formats)


def layer_weight_bytes(spec: ModelSpec, formats: Formats) -> int:
    """Bytes of one layer's weights on one device; all layers are alike. Raises UserError where the shards do not divide the model."""
    check_shards(spec, formats.shards)
    return sum(_bytes(p, spec, formats) for p in parameters(replace(spec, layers=1)) if p.name.startswith(_FIRST))


def _shared_bytes(spec: ModelSpec, formats: Formats) -> int:
    return sum(_bytes(p, spec, formats) for p in parameters(replace(spec, layers=1)) if not p.name.startswith(_FIRST))


def _bytes(parameter: Parameter, spec: ModelSpec, formats: Formats) -> int:
    name, shape, shards = parameter.name.removeprefix(_FIRST), parameter.shape, formats.shards
    if name in ("embedding.token.weight", "head.weight"):
        return -(-shape[0] // shards) * shape[1] * formats.item_bytes
    rows = shape[0]
    if name.startswith("attention.qkv."):
        rows = spec.query_size // shards + 2 * local_kv_heads(spec, shards) * spec.head_size
    elif name.startswith("feed_forward.up."):
        rows //= shards
    if len(shape) == 1:
        return rows * formats.item_bytes
    columns = shape[1] // shards if name in ("attention.output.weight", "feed_forward.down.weight") else shape[1]
    if parameter.name.startswith(_FIRST):
        return formats.matrices.matrix_bytes(rows, columns)
    return rows * columns * formats.item_bytes
