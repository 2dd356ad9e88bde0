"""Loads a model whose layers live elsewhere, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from inferometer.engine.residency.courier import Courier, DirectCourier, ThreadCourier
from inferometer.engine.residency.disk_file import DiskSpace
from inferometer.engine.residency.homes import LayerHomes
from inferometer.engine.residency.link import Link, link_to
from inferometer.engine.residency.streamed import StreamedLayers
from inferometer.kernels.quant_weight import QuantWeight
from inferometer.model.checkpoint import Family
from inferometer.model.placement import Placement
from inferometer.model.spec import ModelSpec
from inferometer.nn.formats.layout import Layouts
from inferometer.nn.load import fill
from inferometer.nn.numerics import Numerics
from inferometer.nn.source import CheckpointSource
from inferometer.nn.transformer import Transformer

Place = Callable[[Sequence[int]], Placement]


def load_streamed(
    spec: ModelSpec,
    source: CheckpointSource,
    family: Family,
    place: Place,
    *,
    device: torch.device,
    dtype: torch.dtype,
    numerics: Numerics = Numerics.FASTEST,
    quantised: Layouts | None = None,
    disk: DiskSpace | None = None,
    link: Link | None = None,
) -> Transformer:
    """The model, its layers where `place` puts them by the bytes of each.

    A layer is read into its slot as one that stays would be, rounded there if it is to be, and goes from there to where it lives: beside
    the model no more is held than one tensor of the checkpoint. disk: for what lies on one. link: to the device, None for what it has.
    Raises UserError, and torch.OutOfMemoryError where the device has too little memory for what stays.
    """
    homes: list[LayerHomes] = []
    placements: list[Placement] = []

    def memory(sizes: Sequence[int]) -> Sequence[Tensor | None]:
        placements.append(place(sizes))
        homes.append(LayerHomes(placements[0], device, disk))
        return homes[0].memory()

    try:
        model = Transformer(spec, device, dtype, numerics, quantised, layer_memory=memory)
        streamed = placements[0].streamed_layers
        targets: dict[str, Tensor | QuantWeight] = {**dict(model.named_parameters()), **model.quantised}
        come = {layer: {name: targets.pop(name) for name in list(targets) if name.startswith(f"layers.{layer}.")} for layer in streamed}
        fill(targets, spec, source, family, dtype)
        for layer, own in come.items():
            fill(own, spec, source, family, dtype)
            homes[0].keep(layer)
    except BaseException:
        for each in homes:
            each.close()
        raise
    if streamed:
        model.residency = StreamedLayers(placements[0], homes[0], _courier(homes[0], device, link))
    return model


def _courier(homes: LayerHomes, device: torch.device, link: Link | None) -> Courier:
    between = link or link_to(device)
    if device.type == "cuda" and homes.reader is None:
        return DirectCourier(between)
    return ThreadCourier(between, homes.reader)
