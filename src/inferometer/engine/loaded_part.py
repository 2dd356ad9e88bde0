"""A rank's part of a model, loaded from the weights that its description names."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Literal

import torch

from inferometer.engine.device import resolve_dtype
from inferometer.engine.memory import check_weights
from inferometer.engine.parallel.ranks import Ranks
from inferometer.engine.residency.load import load_streamed
from inferometer.engine.residency.storage import DeviceRoom, Storage, positive
from inferometer.errors import UserError, shown
from inferometer.model.description import ModelDescription
from inferometer.model.families import family
from inferometer.model.formats import WeightFormat
from inferometer.model.shard import Shard
from inferometer.model.spec import ModelSpec
from inferometer.nn.formats.layout import format_layouts
from inferometer.nn.formats.stored import QuantisedSource, stored_layouts
from inferometer.nn.load import load, open_source
from inferometer.nn.names import fitted
from inferometer.nn.numerics import Numerics
from inferometer.nn.transformer import Transformer


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """gpu_memory: GiB that all may take together on the GPU, None for `fraction` of the device.

    Raises UserError, by the names that `LLM` has for them, for what is no such number.
    """

    gpu_memory: float | None
    fraction: float

    def __post_init__(self) -> None:
        if self.gpu_memory is not None and not positive(self.gpu_memory):
            raise UserError(f"gpu_memory must be a number of GiB above 0, not {shown(self.gpu_memory)}")
        if not (positive(self.fraction) and self.fraction <= 1):
            raise UserError(f"memory_fraction must be a number above 0 and at most 1, not {shown(self.fraction)}")


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """spec: of the whole model, as its weights have it. dtype: of weights and activations. model: packed, ready to run."""

    spec: ModelSpec
    dtype: torch.dtype
    model: Transformer


def load_part(
    description: ModelDescription,
    weight_format: WeightFormat | None,
    device: torch.device,
    dtype: str,
    numerics: Numerics,
    ranks: Ranks,
    storage: Storage,
    limits: DeviceLimits,
    *,
    weights: Literal["auto", "dummy"],
    seed: int,
) -> LoadedPart:
    """What this one of `ranks`, all of which call it, has of the model; layers come and go where `storage` says so.

    dtype: as asked for. seed: of dummy weights. Raises UserError and ModelError, one line, for weights that cannot be had, read or held.
    """
    shard, collective = Shard(ranks.rank, ranks.size), ranks.collective(device, invariant=numerics is Numerics.INVARIANT)
    with closing(open_source(description, weights=weights, seed=seed)) as source:
        kind = family(description.spec.family)
        spec = fitted(description.spec, source, kind, collective)
        resolved = resolve_dtype(dtype, device, source.dtype)
        quantised = None
        if isinstance(source, QuantisedSource):
            quantised = stored_layouts(spec, source, kind, device, shard)
        elif weight_format is not None:
            quantised = format_layouts(spec, weight_format, device)
        if storage.streams:
            room = DeviceRoom.on(device, limits.gpu_memory, limits.fraction)
            model = load_streamed(
                spec,
                source,
                kind,
                lambda sizes: storage.place(sizes, spec, room, resolved, quantised),
                device=device,
                dtype=resolved,
                numerics=numerics,
                quantised=quantised,
                disk=storage.disk,
            )
        else:
            check_weights(spec, device, resolved, weight_format, shards=ranks.size)
            collective.minimum(1)  # nobody loads before all have looked
            model = Transformer(spec, device, resolved, numerics, quantised, collective)
            load(model, source, kind)
    model.pack()
    return LoadedPart(spec, resolved, model)
